package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"konnectivity/internal/unixsocket"
)

// demoFolder makes a folder for newDemo, which the caller removes.
func demoFolder() (string, error) { return makeScratch(scratchPlaces()) }

// scratchPlaces are the folders in which quickstart may keep its files. A container's
// image may lack a folder for temporary files and have a read-only root; /dev/shm is
// writable even there.
func scratchPlaces() []string {
	places := []string{os.TempDir(), "/dev/shm"}
	if here, err := os.Getwd(); err == nil {
		places = append(places, here)
	}
	return places
}

// makeScratch makes a folder in the first of places where a unix socket is possible: its
// path must be short, and not every file system supports sockets.
func makeScratch(places []string) (string, error) {
	var causes []string
	for _, place := range places {
		dir, err := os.MkdirTemp(place, "konnectivity-")
		if err == nil {
			if err = trySocket(dir); err == nil {
				return dir, nil
			}
			_ = os.RemoveAll(dir)
		}
		causes = append(causes, fmt.Sprintf("%s (%v)", place, err))
	}
	return "", fmt.Errorf("no folder for certificates and a unix socket: neither of %s; name one in TMPDIR", strings.Join(causes, ", "))
}

func trySocket(dir string) error {
	l, err := unixsocket.Listen(filepath.Join(dir, demoSocket), unixsocket.Options{})
	if err != nil {
		return err
	}
	return l.Close()
}
