// client-go's informer of ConfigMaps: answers each line of its input with its cache as JSON.
//
//	cache URL SELECTOR
//
// The answer maps `<namespace>/<name>` of each ConfigMap to its data `n`; it is empty until the first
// sync. WatchList is what the environment
// variable KUBE_FEATURE_WatchListClient says.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	config := &rest.Config{Host: os.Args[1], QPS: -1}
	factory := informers.NewSharedInformerFactoryWithOptions(
		kubernetes.NewForConfigOrDie(config), 0,
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = os.Args[2]
		}),
	)
	store := factory.Core().V1().ConfigMaps().Informer().GetStore()
	stop := make(chan struct{})
	factory.Start(stop)
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		found := map[string]string{}
		for _, object := range store.List() {
			held := object.(*corev1.ConfigMap)
			found[held.Namespace+"/"+held.Name] = held.Data["n"]
		}
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
	}
}
