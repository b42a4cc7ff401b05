//go:build !linux || race || msan || asan

package tunnel

import "net"

// writeAll writes all of src, by one writev where the system has that.
func (s *socket) writeAll(src []Chunk) error {
	vec := make(net.Buffers, len(src))
	for i, c := range src {
		vec[i] = c.Bytes()
	}
	_, err := vec.WriteTo(s.conn)
	return err
}
