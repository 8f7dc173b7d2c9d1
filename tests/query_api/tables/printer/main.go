// Prints the tables of kube-apiserver: one JSON line in, one out.
//
// {"object": {…}} is answered by {"columns": […], "rows": [[…]], "sent": true}, as a get is;
// "sent" is false for an object that no server sends: it does not decode, or lacks defaults; with
// "whole": true the answer has the object with its defaults.
// {"list": [{…}, …]} is answered by the rows of a list of these objects, which are of one kind.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	crdtable "k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition/tableconvertor"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiservice "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apiserverinternal/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/lifecycle/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
)

type question struct {
	Object json.RawMessage
	List   []json.RawMessage
	Whole  bool
}

type answer struct {
	Columns []metav1.TableColumnDefinition `json:"columns"`
	Rows    [][]any                        `json:"rows"`
	Sent    bool                           `json:"sent"`
	Object  runtime.Object                 `json:"object,omitempty"`
}

var (
	scheme  = legacyscheme.Scheme
	builtin = printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}
	plain   = rest.NewDefaultTableConvertor(schema.GroupResource{})
)

func main() {
	apiextensions.Install(scheme)
	apiregistration.Install(scheme)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<26)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var asked question
		found, err := answer{}, json.Unmarshal(in.Bytes(), &asked)
		if err == nil {
			found, err = print(asked)
		}
		if err != nil {
			found = answer{}
			fmt.Fprintln(os.Stderr, err, in.Text())
		}
		if err := out.Encode(found); err != nil {
			panic(err)
		}
	}
}

// print fails for objects that no server has, where defaults or validation keep a printer from nil.
func print(asked question) (printed answer, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	bodies := asked.List
	if bodies == nil {
		bodies = []json.RawMessage{asked.Object}
	}
	found := answer{Sent: true}
	var objects []runtime.Object
	for _, body := range bodies {
		object, isWhole, err := decode(body)
		if err != nil {
			return answer{}, err
		}
		found.Sent = found.Sent && isWhole
		objects = append(objects, object)
	}
	if asked.Whole {
		found.Object = objects[0].DeepCopyObject()
	}
	table, err := convert(objects, asked.List != nil)
	if err != nil {
		return answer{}, err
	}
	found.Columns = table.ColumnDefinitions
	for _, row := range table.Rows {
		found.Rows = append(found.Rows, row.Cells)
	}
	return found, nil
}

// decode returns whether the object has all defaults, too.
func decode(body []byte) (runtime.Object, bool, error) {
	object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, false, err
	}
	before, err := json.Marshal(object)
	if err != nil {
		return nil, false, err
	}
	scheme.Default(object)
	after, err := json.Marshal(object)
	return object, bytes.Equal(before, after), err
}

func convert(objects []runtime.Object, isList bool) (*metav1.Table, error) {
	kind := objects[0].GetObjectKind().GroupVersionKind()
	var internal []runtime.Object
	for _, object := range objects {
		each, err := scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
		if err != nil {
			return nil, err
		}
		internal = append(internal, each)
	}
	shown, external := internal[0], objects[0]
	if isList {
		shown = list(schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal, Kind: kind.Kind}, internal)
		external = list(kind, objects)
	}
	table, err := convertorOf(kind.Kind).ConvertToTable(context.Background(), shown, &metav1.TableOptions{})
	if err != nil { // a kind without a printer
		return plain.ConvertToTable(context.Background(), external, &metav1.TableOptions{})
	}
	return table, nil
}

func list(kind schema.GroupVersionKind, objects []runtime.Object) runtime.Object {
	kind.Kind += "List"
	made, err := scheme.New(kind)
	if err != nil {
		panic(err)
	}
	if err := meta.SetList(made, objects); err != nil {
		panic(err)
	}
	return made
}

func convertorOf(kind string) rest.TableConvertor {
	switch kind {
	case "CustomResourceDefinition":
		return crdtable.New()
	case "APIService":
		return &apiservice.REST{}
	default:
		return builtin
	}
}
