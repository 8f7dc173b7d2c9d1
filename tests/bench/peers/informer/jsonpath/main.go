// Renders JSONPath templates as kubectl does and prints the results.
//
// Reads JSON from standard input: {"objects": {name: object}, "cases": [{"text",
// "object"}]}. Prints a list of {"output"} or {"error"}.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"
)

type input struct {
	Objects map[string]json.RawMessage `json:"objects"`
	Cases   []struct {
		Text   string `json:"text"`
		Object string `json:"object"`
	} `json:"cases"`
}

type answer struct {
	Output string `json:"output"`
	Error  string `json:"error,omitempty"`
}

func main() {
	var asked input
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		panic(err)
	}
	answers := make([]answer, 0, len(asked.Cases))
	for _, each := range asked.Cases {
		output, err := render(each.Text, asked.Objects[each.Object])
		if err != nil {
			answers = append(answers, answer{Error: err.Error()})
		} else {
			answers = append(answers, answer{Output: output})
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}

func render(text string, raw json.RawMessage) (output string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return "", err
	}
	path := jsonpath.New("out").AllowMissingKeys(true)
	if err := path.Parse(text); err != nil {
		return "", err
	}
	buffer := &bytes.Buffer{}
	err = path.Execute(buffer, object.UnstructuredContent())
	return buffer.String(), err
}
