package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// DecodeYAML decodes one YAML document of at most so many bytes, in which every field is known
// and given once: what would have no effect is an error, since its writer believes that it has
// one. field is where an error is; "": the file as a whole.
func DecodeYAML(text []byte, most int, into any) (field string, err error) {
	switch {
	case len(text) > most:
		return "", fmt.Errorf("it has %d bytes: want %d at most", len(text), most)
	case severalDocuments(text):
		return "", errors.New("it has several YAML documents, or something else behind the first: want one, without --- between its lines")
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
		return "", errors.New(strings.ReplaceAll(strings.TrimPrefix(text, "unmarshal errors:\n  "), "\n  ", "; ")) // on one line
	}
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.DisallowUnknownFields()
	err = d.Decode(into)
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mismatch):
		return mismatch.Field, fmt.Errorf("want %s, not a %s", kindOf(mismatch.Type.Kind().String()), mismatch.Value)
	case err != nil:
		return "", errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return "", nil
}

// severalDocuments reports whether text has YAML documents with content, or anything but YAML,
// behind the first. YAMLToJSONStrict would leave that out without an error.
func severalDocuments(text []byte) bool {
	documents := yamlv2.NewDecoder(bytes.NewReader(text))
	err := documents.Decode(new(any))
	if err != nil {
		return false // the first is wrong itself
	}
	for content := any(nil); err == nil && content == nil; {
		err = documents.Decode(&content)
	}
	return err != io.EOF
}

// kindOf is a kind of Go as people who write YAML call it.
func kindOf(kind string) string {
	switch kind {
	case "slice":
		return "a list"
	case "struct", "ptr", "map":
		return "fields"
	case "string":
		return "text, in quotes"
	case "bool":
		return "true or false"
	default:
		return "a whole number"
	}
}
