package tenant

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"konnectivity/internal/files"
)

const (
	// maxFiles is how many files of a tenant's folder are watched, which has
	// half a dozen. One with more, or with twice as many where those that begin
	// with a dot are counted, is read at every look.
	maxFiles = 64

	// maxFile bounds each file that is read of it. A CA bundle has a few KiB.
	maxFile = 1 << 20

	// rereadEvery is how often a folder is read although it looks unchanged, for
	// file systems that do not tell. It takes as many system calls as a minute of
	// looks.
	rereadEvery = 10 * time.Minute

	// settled is how far from now the time of a file must be to tell that it has not
	// changed since it was read: clocks of file systems are coarse. It is in the future where
	// the clock was set back.
	settled = time.Second
)

// Load reads a tenant's folder once; its last part is the tenant's name. It is
// for tools that look at one; a server follows them all with Open. An error
// names file and field.
func Load(name, folder string) (*Spec, error) {
	f, err := openFolder(folder)
	if err != nil {
		return nil, err
	}
	defer f.close()
	return parse(name, f.read)
}

// Beside loads the other tenants of the folder in which that of name is, or is to be, without
// those that cannot be used.
func Beside(folder, name string) (all []*Spec) {
	parent := filepath.Join(folder, "..")
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil // there is none
	}
	for _, e := range entries {
		if e.Name() == name || CheckName(e.Name()) != nil {
			continue
		}
		if t, err := Load(e.Name(), filepath.Join(parent, e.Name())); err == nil {
			all = append(all, t)
		}
	}
	return all
}

// folders is a folder with a folder for each tenant, a source.
type folders string

func (folders) kind() string { return "folder" }

func (folders) explain(_ string, err error) error { return err }

func (path folders) list() ([]string, error) {
	entries, err := os.ReadDir(string(path))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && (e.IsDir() || e.Type()&fs.ModeSymlink != 0) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (path folders) open(name string) (store, error) {
	f, err := openFolder(filepath.Join(string(path), name))
	if err != nil {
		return nil, err // and no store, which a nil *folder would be
	}
	return f, nil
}

// folder is a tenant's folder, opened. Whatever a link in it says, nothing
// outside of it is read.
type folder struct{ root *os.Root }

func openFolder(path string) (*folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, bare(err)
	}
	return &folder{root}, nil
}

func (f *folder) close() { _ = f.root.Close() }

// read implements store.
func (f *folder) read(name string) ([]byte, error) {
	data, err := f.readAll(name)
	if err != nil {
		return nil, &FieldError{File: name, Err: bare(err)}
	}
	return data, nil
}

func (f *folder) readAll(name string) ([]byte, error) {
	file, err := f.root.OpenFile(name, files.Mode, 0)
	if err != nil {
		return nil, err
	}
	return files.ReadAll(file, maxFile)
}

// bare is an error of the file system without the path, which its owner names.
func bare(err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return failed.Err
	}
	return err
}

// folderStamp is what a folder looks like: two that are the same hold the same,
// if no file was young when the first was taken.
type folderStamp struct {
	self  look
	files []fileStamp // by name
	young bool        // nothing is told by it
	all   bool        // none can come or go without a trace in self
}

// fileStamp is what a file of a folder looks like, links followed.
type fileStamp struct {
	name string
	look
}

// stamp lists the folder. Files that begin with a dot do not count; a file that
// goes away meanwhile is not there.
func (f *folder) stamp(now time.Time) (stamp, error) {
	self, err := f.root.Stat(".")
	if err != nil {
		return nil, bare(err)
	}
	dir, err := f.root.Open(".")
	if err != nil {
		return nil, bare(err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(2 * maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, bare(err)
	}
	cut := len(names) == 2*maxFiles // the listing is not complete
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, ".") })
	slices.Sort(names)
	s := folderStamp{self: lookOf(self), young: cut || len(names) > maxFiles, all: now.Sub(self.ModTime()).Abs() >= settled}
	for _, name := range names {
		info, err := f.root.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			s.all = false // a link that leads nowhere yet
			continue
		case err != nil: // it may be none that is needed
			s.young = true
			continue
		}
		s.files = append(s.files, fileStamp{name, lookOf(info)})
		s.young = s.young || now.Sub(info.ModTime()).Abs() < settled
	}
	return s, nil
}

// same implements stamp.
func (s folderStamp) same(other stamp) bool {
	o, ok := other.(folderStamp)
	return ok && s.self.sameFile(o.self) && slices.EqualFunc(s.files, o.files, func(a, b fileStamp) bool {
		return a.name == b.name && a.same(b.look)
	})
}

// still implements source. It is one system call, and another for each file, where
// to open the folder, and to list it, takes twice as many. There are thousands.
func (path folders) still(name string, was stamp, files bool) bool {
	s, ok := was.(folderStamp)
	if !ok || !s.all {
		return false
	}
	folder := filepath.Join(string(path), name)
	return s.self.still(folder) && !(files && slices.ContainsFunc(s.files, func(was fileStamp) bool {
		return !was.still(folder + string(filepath.Separator) + was.name)
	}))
}

// holds implements stamp.
func (s folderStamp) holds(since time.Duration) bool { return !s.young && since < rereadEvery }
