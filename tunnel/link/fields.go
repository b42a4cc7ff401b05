package link

import (
	"encoding/binary"
	"errors"
)

// Messages are sequences of fields (§2). Each message has a method, fields, that goes
// through all that it knows, whatever their values, in the order in which they are sent; a
// test compares them with the specification's table.

var errFields = errors.New("fields do not parse")

// coder encodes the fields of a message, or decodes them. One of its methods is called for
// each field, with the present value: when encoding, it appends that; when decoding, it
// returns the value that has come instead, if one has.
type coder struct {
	encodes bool
	out     []byte            // when encoding, the fields so far
	in      []byte            // when decoding, the message
	came    [keys]uint16      // and how much of it follows the last field of each key, with that; 0: none has come
	kinds   map[uint16]string // where tests collect what the fields are; else nil
	err     error
}

// keys is how many keys there are, and 0, which is none.
const keys = 17

// usualMessage is what most messages fit in, in bytes: an OPEN with all its fields.
const usualMessage = 192

func encoder() coder { return coder{encodes: true, out: make([]byte, 0, usualMessage)} }

// decoder returns a coder that decodes b. It skips fields with unknown keys.
func decoder(b []byte) (c coder) {
	c.in = b
	for len(b) > 0 {
		key, _, rest, ok := nextField(b)
		if !ok {
			c.err = errFields
			break
		}
		if key < keys {
			c.came[key] = uint16(len(b)) // a message fits into a frame
		}
		b = rest
	}
	return c
}

// nextField takes one field off b.
func nextField(b []byte) (key uint16, value, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if len(b) < 4+n {
		return 0, nil, nil, false
	}
	return binary.BigEndian.Uint16(b), b[4 : 4+n], b[4+n:], true
}

// take returns the value that has come for a key, nil if none has. kind is what the
// specification calls it: "u32", "text" or "bytes".
func (c *coder) take(key uint16, kind string) []byte {
	if c.kinds != nil {
		c.kinds[key] = kind
	}
	if c.came[key] == 0 {
		return nil
	}
	_, value, _, _ := nextField(c.in[len(c.in)-int(c.came[key]):])
	return value
}

// unsigned are the kinds of numbers, by their size.
var unsigned = [...]string{1: "u8", 2: "u16", 4: "u32", 8: "u64"}

// number is a field with an unsigned integer of size bytes. sent says whether it is sent.
func (c *coder) number(key uint16, size int, v uint64, sent bool) uint64 {
	switch value := c.take(key, unsigned[size]); {
	case c.encodes && sent:
		c.out = binary.BigEndian.AppendUint16(c.out, key)
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(size))
		for i := size - 1; i >= 0; i-- {
			c.out = append(c.out, byte(v>>(8*i)))
		}
	case value != nil && len(value) != size:
		c.err = errFields
	case value != nil:
		v = 0
		for _, b := range value {
			v = v<<8 | uint64(b)
		}
	}
	return v
}

// text is a field with a string, which is not sent while it is empty: absent and empty
// mean the same. A longer text is cut to most bytes, when sent and when received.
func (c *coder) text(key uint16, v string, most int) string {
	v, _ = c.string(key, "text", v, most, v != "")
	return v
}

// string is a field with a string of some kind, cut to most bytes when sent and when received.
// sent says whether it is sent. string returns sent, or true where the field has come.
func (c *coder) string(key uint16, kind, v string, most int, sent bool) (string, bool) {
	value := c.take(key, kind)
	if c.encodes && sent {
		c.out = appendField(c.out, key, v[:min(len(v), most)])
	}
	if value == nil {
		return v, sent
	}
	return string(value[:min(len(value), most)]), true
}

// array is a field with as many bytes as v has, without which the message does not parse.
func (c *coder) array(key uint16, kind string, v []byte) {
	switch value := c.take(key, kind); {
	case c.encodes:
		c.out = appendField(c.out, key, v)
	case len(value) != len(v):
		c.err = errFields
	default:
		copy(v, value)
	}
}

// list is a text that a message has any number of times, up to most.
func (c *coder) list(key uint16, v []string, most int) []string {
	c.take(key, "text")
	if c.encodes {
		for _, one := range v {
			c.text(key, one, maxPayload)
		}
	}
	for b := c.in; len(b) > 0 && c.err == nil; {
		found, value, rest, _ := nextField(b)
		switch b = rest; {
		case found != key:
		case len(v) >= most:
			c.err = errFields
		default:
			v = append(v, string(value))
		}
	}
	return v
}

func appendField[V []byte | string](b []byte, key uint16, value V) []byte {
	b = binary.BigEndian.AppendUint16(b, key)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}
