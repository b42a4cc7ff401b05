package kubeapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
)

// members calls take with each name in the object that comes next. take decodes the value.
func members(from *json.Decoder, take func(name string) error) error {
	return within(from, '{', func() error {
		name, err := from.Token()
		if err != nil {
			return err
		}
		return take(name.(string)) // the Decoder takes nothing else for a name
	})
}

// within calls take, which decodes an element, until the object or the array that comes next is
// at its end; null is an empty array.
func within(from *json.Decoder, opening json.Delim, take func() error) error {
	switch first, err := from.Token(); {
	case err != nil, first == nil && opening == '[':
		return err
	case first != opening:
		return fmt.Errorf("the API sent %.100v in place of %v", cmp.Or[any](first, "null"), opening)
	}
	for from.More() {
		if err := take(); err != nil {
			return err
		}
	}
	_, err := from.Token()
	return err
}

// full fills all that it is to read into, unless its Reader ends. A Decoder looks again at all space
// before a token with each read, and reads into ever more room: few reads look at it a few times.
type full struct{ io.Reader }

func (f full) Read(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = f.Reader.Read(p[n:])
		n += m
	}
	return n, err
}
