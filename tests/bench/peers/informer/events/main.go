// client-go's informer of ConfigMaps: prints what happens to it, as lines of JSON.
//
//	events URL SELECTOR [ADDRESS...]
//
// Where the server of the URL takes no connection, it goes to the first of the addresses that does, as
// behind a Service.
// `list`: it asks for a list, or for a watch that begins with the present state. `answered`: the list
// was answered. `open`: a watch was answered, from a version unless it begins with the state. `gone`: with 410, or such an error in it. `end`: the watch is over. `event`:
// a handler was called. `cache`: its cache, for each line of its input. WatchList is what the
// environment variable KUBE_FEATURE_WatchListClient says.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

type line struct {
	Kind    string              `json:"kind"`
	Type    string              `json:"type,omitempty"`
	Version string              `json:"version,omitempty"`
	Object  *corev1.ConfigMap   `json:"object,omitempty"`
	Objects []*corev1.ConfigMap `json:"objects,omitempty"`
}

var mutex sync.Mutex

func say(one line) {
	text, _ := json.Marshal(one)
	mutex.Lock()
	defer mutex.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

// transport tells of lists and watches.
type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	watches, _ := strconv.ParseBool(query.Get("watch"))
	version := query.Get("resourceVersion")
	begins := !watches || query.Get("sendInitialEvents") == "true"
	if begins {
		say(line{Kind: "list"})
	}
	response, err := t.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	if response.StatusCode == http.StatusGone {
		say(line{Kind: "gone"})
	}
	if !watches && response.StatusCode == http.StatusOK {
		say(line{Kind: "answered"})
	}
	if watches && response.StatusCode == http.StatusOK {
		if begins {
			version = ""
		}
		say(line{Kind: "open", Version: version})
		response.Body = &body{ReadCloser: response.Body}
	}
	return response, nil
}

// body tells of the end of a watch.
type body struct {
	io.ReadCloser
	once sync.Once
}

func (b *body) Read(into []byte) (int, error) {
	count, err := b.ReadCloser.Read(into)
	if bytes.Contains(into[:count], []byte(`{"type":"ERROR"`)) {
		say(line{Kind: "gone"})
	}
	if err != nil {
		b.end()
	}
	return count, err
}

func (b *body) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

func (b *body) end() { b.once.Do(func() { say(line{Kind: "end"}) }) }

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, network, address)
	for _, other := range os.Args[3:] {
		if err == nil {
			break
		}
		connection, err = dialer.DialContext(ctx, network, other)
	}
	return connection, err
}

func event(what string, object any) {
	if gone, is := object.(cache.DeletedFinalStateUnknown); is {
		object = gone.Obj
	}
	say(line{Kind: "event", Type: what, Object: object.(*corev1.ConfigMap)})
}

func main() {
	config := &rest.Config{Host: os.Args[1], QPS: -1, Dial: dial}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{next} })
	factory := informers.NewSharedInformerFactoryWithOptions(
		kubernetes.NewForConfigOrDie(config), 0,
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = os.Args[2]
		}),
	)
	informer := factory.Core().V1().ConfigMaps().Informer()
	informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { event("ADDED", object) },
		UpdateFunc: func(_, object any) { event("MODIFIED", object) },
		DeleteFunc: func(object any) { event("DELETED", object) },
	})
	factory.Start(make(chan struct{}))
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		found := []*corev1.ConfigMap{}
		for _, object := range informer.GetStore().List() {
			found = append(found, object.(*corev1.ConfigMap))
		}
		say(line{Kind: "cache", Objects: found})
	}
}
