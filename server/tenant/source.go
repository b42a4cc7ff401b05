package tenant

import "time"

// source is where tenants' files are kept. A Dir calls it from one goroutine at
// a time.
type source interface {
	// kind is what holds a tenant's files, in the words of a log.
	kind() string

	// list returns the tenants' names. An error says nothing about them: no tenant is
	// removed.
	list() ([]string, error)

	// open gets at one tenant's files. errors.Is(err, fs.ErrNotExist) tells that
	// there are none.
	open(name string) (store, error)

	// still says that a tenant's files look as they did when the stamp was taken,
	// as far as a cheap look tells; with files, it looks at each of them. false
	// tells nothing.
	still(name string, was stamp, files bool) bool

	// explain adds to an error what it does not say of where it is.
	explain(name string, err error) error
}

// store is where the files of one tenant are.
type store interface {
	// read reads a file. An error is a *FieldError; errors.Is(err,
	// fs.ErrNotExist) tells one that is not there.
	read(name string) ([]byte, error)

	// stamp is what the files look like now.
	stamp(now time.Time) (stamp, error)

	close()
}

// stamp is what files look like without reading them.
type stamp interface {
	// same says whether nothing has changed since o was taken.
	same(o stamp) bool

	// holds says whether it tells of files that were read that long ago what
	// they still have. With 0, it says whether it ever will.
	holds(since time.Duration) bool
}
