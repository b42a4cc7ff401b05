package certs

import (
	"errors"
	"io/fs"
	"os"
)

// file is one to write, with pki.WriteCert or pki.WriteKey.
type file struct {
	path  string
	data  []byte
	write func(path string, data []byte) error
}

// writeAll writes new files of dir: all, or none. Those that are left would be in the
// way of the next try, as what is there is never overwritten.
func writeAll(dir string, files []file) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, f := range files {
		err := f.write(f.path, f.data)
		if err == nil {
			continue
		}
		ours := files[:i]
		if !errors.Is(err, fs.ErrExist) {
			ours = files[:i+1] // what there is of it
		}
		takeBack(ours)
		return err
	}
	return nil
}

// takeBack removes files that were written.
func takeBack(files []file) {
	for _, f := range files {
		_ = os.Remove(f.path)
	}
}
