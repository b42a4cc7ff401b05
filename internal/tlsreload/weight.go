package tlsreload

import (
	"crypto/x509"
	"fmt"
	"reflect"
)

// maxWeight bounds what the certificates of one peer may take in memory, in bytes:
// several times as much as the longest chains in use. A handshake carries 48 KiB of
// them, which take up to 4 MiB once they are parsed.
const maxWeight = 256 << 10

// Weight is about how many bytes of memory a peer's certificates take for as long
// as its connection lasts. What they are full of decides: an empty name of two
// bytes can become a URL of 150.
func Weight(chain []*x509.Certificate) (bytes int) {
	for _, cert := range chain {
		bytes += len(cert.Raw) + weigh(reflect.ValueOf(cert))
	}
	return bytes
}

// CheckWeight refuses certificates that take more than 256 KiB; genuine ones take less.
func CheckWeight(chain []*x509.Certificate) error {
	if n := Weight(chain); n > maxWeight {
		return fmt.Errorf("the certificates that the peer shows take %d bytes of memory, and may take %d", n, maxWeight)
	}
	return nil
}

// weigh is what v refers to, whatever its type: a field that was forgotten here
// would be one to fill a certificate with. Slices of bytes are parts of Raw.
func weigh(v reflect.Value) (bytes int) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return int(v.Elem().Type().Size()) + weigh(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			bytes += weigh(v.Field(i))
		}
	case reflect.String:
		return v.Len()
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 0
		}
		bytes = v.Cap() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			bytes += weigh(v.Index(i))
		}
	}
	return bytes
}
