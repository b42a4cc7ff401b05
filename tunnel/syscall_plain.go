//go:build !linux || race || msan || asan

package tunnel

import "net"

// writeAll writes all of src, by one writev where the system has that. It returns how many
// bytes were written.
func (s *socket) writeAll(src []Chunk) (int, error) {
	vec := make(net.Buffers, len(src))
	for i, c := range src {
		vec[i] = c.Bytes()
	}
	n, err := vec.WriteTo(s.conn)
	return int(n), err
}
