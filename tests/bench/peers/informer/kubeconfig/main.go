// Loads kubeconfigs as kubectl does and prints what client-go makes of each.
//
// Reads JSON from standard input: a list of {"path", "env"}. Prints a list of
// what a request for /version would be: its URL, proxy, TLS and headers, and
// what a credential plugin saw; or the error.
package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"golang.org/x/net/http/httpproxy"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

type question struct {
	Path string            `json:"path"`
	Env  map[string]string `json:"env"`
}

type answer struct {
	Error       string              `json:"error,omitempty"`
	URL         string              `json:"url,omitempty"`
	Proxy       string              `json:"proxy,omitempty"`
	ServerName  string              `json:"serverName,omitempty"`
	Insecure    bool                `json:"insecure,omitempty"`
	CA          bool                `json:"ca,omitempty"`
	Certificate string              `json:"certificate,omitempty"`
	Compressed  bool                `json:"compressed"`
	Headers     map[string][]string `json:"headers,omitempty"`
	ExecInfo    json.RawMessage     `json:"execInfo,omitempty"`
}

type recorder struct{ headers http.Header }

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.headers = req.Header.Clone()
	return &http.Response{StatusCode: 200, Body: io.NopCloser(bytes.NewReader(nil))}, nil
}

func main() {
	var questions []question
	if err := json.NewDecoder(os.Stdin).Decode(&questions); err != nil {
		panic(err)
	}
	answers := make([]answer, 0, len(questions))
	for _, each := range questions {
		made, err := load(each)
		if err != nil {
			made = answer{Error: err.Error()}
		}
		answers = append(answers, made)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}

func load(each question) (answer, error) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		os.Unsetenv(name)
	}
	for name, value := range each.Env {
		os.Setenv(name, value)
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: each.Path}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return answer{}, err
	}
	config.GroupVersion = &schema.GroupVersion{Version: "v1"}
	config.APIPath = "/api"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return answer{}, err
	}
	made := answer{Compressed: !config.DisableCompression}
	address := client.Get().AbsPath("/version").URL()
	made.URL = address.String()
	req, err := http.NewRequest("GET", made.URL, nil)
	if err != nil {
		return answer{}, err
	}
	if made.Proxy, err = proxyOf(config, req); err != nil {
		return answer{}, err
	}
	seen := &recorder{}
	wrapped, err := rest.HTTPWrappersForConfig(config, seen)
	if err != nil {
		return answer{}, err
	}
	if _, err := (&http.Client{Transport: wrapped}).Do(req); err != nil {
		return answer{}, err
	}
	made.Headers = seen.headers
	if err := describeTLS(config, &made); err != nil {
		return answer{}, err
	}
	if info, err := os.ReadFile(filepath.Join(filepath.Dir(each.Path), "seen.json")); err == nil {
		made.ExecInfo = info
	} else if !errors.Is(err, os.ErrNotExist) {
		return answer{}, err
	}
	return made, nil
}

// The environment is read at each call, where http.ProxyFromEnvironment reads it once.
func proxyOf(config *rest.Config, req *http.Request) (string, error) {
	find := config.Proxy
	if find == nil {
		environment := httpproxy.FromEnvironment().ProxyFunc()
		find = utilnet.NewProxierWithNoProxyCIDR(func(r *http.Request) (*url.URL, error) {
			return environment(r.URL)
		})
	}
	proxy, err := find(req)
	if err != nil || proxy == nil {
		return "", err
	}
	return proxy.String(), nil
}

func describeTLS(config *rest.Config, made *answer) error {
	settings, err := config.TransportConfig()
	if err != nil {
		return err
	}
	trust, err := transport.TLSConfigFor(settings)
	if err != nil || trust == nil {
		return err
	}
	made.ServerName, made.Insecure, made.CA = trust.ServerName, trust.InsecureSkipVerify, trust.RootCAs != nil
	if trust.GetClientCertificate == nil {
		return nil
	}
	certificate, err := trust.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	if len(certificate.Certificate) > 0 {
		digest := sha256.Sum256(certificate.Certificate[0])
		made.Certificate = hex.EncodeToString(digest[:8])
	}
	return nil
}
