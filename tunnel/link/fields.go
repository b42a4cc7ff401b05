package link

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Messages are sequences of fields (§2). Each message has a table of those it knows,
// in the order in which they are sent; the specification's table is compared with it.

var errFields = errors.New("fields do not parse")

// field is one field of a message M.
type field[M any] struct {
	key  uint16
	kind string // as the specification has it: "u32", "text" or "bytes"

	// put appends the field to b, if m has it. It takes m by value, so that a message
	// that is sent need not be allocated.
	put func(b []byte, m M) []byte

	// set takes a value that was received, which is valid during the call alone.
	set func(m *M, value []byte) error
}

// number is a field with an unsigned integer of size bytes. get returns whether it is
// sent.
func number[M any](key uint16, size int, get func(m M) (v uint64, sent bool), set func(m *M, v uint64)) field[M] {
	return field[M]{
		key: key, kind: fmt.Sprintf("u%d", 8*size),
		put: func(b []byte, m M) []byte {
			v, sent := get(m)
			if !sent {
				return b
			}
			b = binary.BigEndian.AppendUint16(b, key)
			b = binary.BigEndian.AppendUint16(b, uint16(size))
			for i := size - 1; i >= 0; i-- {
				b = append(b, byte(v>>(8*i)))
			}
			return b
		},
		set: func(m *M, value []byte) error {
			if len(value) != size {
				return errFields
			}
			var v uint64
			for _, c := range value {
				v = v<<8 | uint64(c)
			}
			set(m, v)
			return nil
		},
	}
}

// text is a field with a string, which is not sent while it is empty: absent and empty
// mean the same. A longer text is cut to most bytes, when sent and when received.
func text[M any](key uint16, most int, get func(m M) string, of func(m *M) *string) field[M] {
	return field[M]{
		key: key, kind: "text",
		put: func(b []byte, m M) []byte {
			s := get(m)
			return appendText(b, key, s[:min(len(s), most)])
		},
		set: func(m *M, value []byte) error {
			*of(m) = string(value[:min(len(value), most)])
			return nil
		},
	}
}

// is has the field be another kind of text.
func (f field[M]) is(kind string) field[M] {
	f.kind = kind
	return f
}

// encodeFields appends the fields of m to b.
func encodeFields[M any](b []byte, m M, table []field[M]) []byte {
	for i := range table {
		b = table[i].put(b, m)
	}
	return b
}

// decodeFields fills m from b; fields that are not in b stay. Unknown keys are skipped.
func decodeFields[M any](b []byte, m *M, table []field[M]) error {
	for len(b) > 0 {
		key, value, rest, err := nextField(b)
		if err != nil {
			return err
		}
		for i := range table {
			if table[i].key == key {
				if err := table[i].set(m, value); err != nil {
					return err
				}
			}
		}
		b = rest
	}
	return nil
}

func appendField[V []byte | string](b []byte, key uint16, value V) []byte {
	b = binary.BigEndian.AppendUint16(b, key)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

func appendText(b []byte, key uint16, value string) []byte {
	if value == "" {
		return b
	}
	return appendField(b, key, value)
}

// nextField takes one field off b.
func nextField(b []byte) (key uint16, value, rest []byte, err error) {
	if len(b) < 4 {
		return 0, nil, nil, errFields
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if len(b) < 4+n {
		return 0, nil, nil, errFields
	}
	return binary.BigEndian.Uint16(b), b[4 : 4+n], b[4+n:], nil
}
