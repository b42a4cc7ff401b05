package socks5

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"konnectivity/internal/files"
	"konnectivity/internal/source"

	"github.com/sirupsen/logrus"
)

const (
	// maxCredentialsFile and maxUsers bound what a wrong file can cost: every
	// check compares every user, so that its time reveals nothing.
	maxCredentialsFile = 1 << 20
	maxUsers           = 1000

	// maxCredential is the longest user or password RFC 1929 can carry.
	maxCredential = 255

	// recheck is how long ago the file may have been checked when a client
	// authenticates.
	recheck = time.Second
)

// Checker decides whether a client may pass. Check may take a moment.
type Checker interface {
	Check(source net.Addr, user, password string) bool
}

// Credentials are users and passwords from a file of lines user:password. It
// is a Checker and may be used by any number of goroutines.
type Credentials struct {
	guesses guesses

	path string
	log  logrus.FieldLogger

	mu      sync.Mutex
	looked  time.Time
	stat    fs.FileInfo
	users   [][sha256.Size]byte // see digest; the passwords themselves are not kept
	warned  bool
	nowFunc func() time.Time
}

// LoadCredentials reads path: a line user:password for each user; empty lines
// and lines that start with # do not count, and spaces are part of the user or
// password. User and password have 1 to 255 bytes. Anything else is an error,
// which names the line but never the password, and so is a file without users.
//
// A changed file is noticed when a client authenticates, at most a second late;
// while the new one is missing or broken the old one stays in use, with one
// line of log.
func LoadCredentials(path string, log logrus.FieldLogger) (*Credentials, error) {
	c := &Credentials{path: path, log: log, nowFunc: time.Now}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// Check reports whether a client may pass with user and password. After many
// wrong ones from the client's address it waits, for up to 5 s, and after still
// more it returns false.
func (c *Credentials) Check(client net.Addr, user, password string) bool {
	from := source.Of(client)
	wait, ok := c.guesses.ask(from, time.Now())
	if !ok {
		if c.log != nil {
			c.log.WithField("client", from.String()).Warn("too many wrong passwords from one address; refusing further attempts without checking them")
		}
		time.Sleep(guessRefuse)
		return false
	}
	time.Sleep(wait)
	right := c.valid(user, password)
	c.guesses.answer(from, right, time.Now())
	return right
}

// valid reports whether user has this password. It takes as long for a user that
// exists as for one that does not.
func (c *Credentials) valid(user, password string) bool {
	if len(user) > maxCredential {
		return false
	}
	given := digest([]byte(user), []byte(password))
	found := 0
	for _, u := range c.current() {
		found |= subtle.ConstantTimeCompare(u[:], given[:])
	}
	return found == 1
}

// current returns the users in the file.
func (c *Credentials) current() [][sha256.Size]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.nowFunc()
	if now.Sub(c.looked) < recheck {
		return c.users
	}
	c.looked = now
	stat, err := os.Stat(c.path)
	if err == nil && sameFile(stat, c.stat) {
		return c.users
	}
	if err == nil {
		err = c.load()
	}
	if err != nil && !c.warned && c.log != nil {
		c.log.WithError(err).Warn("the changed SOCKS5 credentials cannot be used; the old ones stay in use")
	}
	c.warned = err != nil
	return c.users
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// load replaces the users with those of the file, or leaves them as they are.
func (c *Credentials) load() error {
	stat, err := os.Stat(c.path) // before it is read: what changes meanwhile is news the next time
	if err != nil {
		return fmt.Errorf("read SOCKS5 credentials: %w", err)
	}
	text, err := files.Read(c.path, maxCredentialsFile)
	if err != nil {
		return fmt.Errorf("read SOCKS5 credentials: %w", err)
	}
	users, err := parseCredentials(text)
	if err != nil {
		return fmt.Errorf("SOCKS5 credentials %s: %w", c.path, err)
	}
	c.stat, c.users, c.looked = stat, users, c.nowFunc()
	return nil
}

func parseCredentials(text []byte) ([][sha256.Size]byte, error) {
	var users [][sha256.Size]byte
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if len(bytes.TrimSpace(line)) == 0 || line[0] == '#' {
			continue
		}
		user, password, ok := bytes.Cut(line, []byte(":"))
		switch {
		case !ok:
			return nil, fmt.Errorf("line %d is not user:password", n)
		case len(user) == 0 || len(user) > maxCredential:
			return nil, fmt.Errorf("line %d: a user has 1 to %d bytes", n, maxCredential)
		case len(password) == 0 || len(password) > maxCredential:
			return nil, fmt.Errorf("line %d: a password has 1 to %d bytes", n, maxCredential)
		case len(users) == maxUsers:
			return nil, fmt.Errorf("line %d: more than %d users", n, maxUsers)
		}
		users = append(users, digest(user, password))
	}
	switch {
	case lines.Err() != nil:
		return nil, lines.Err()
	case len(users) == 0:
		return nil, errors.New("the file names no user")
	}
	return users, nil
}

// digest returns a hash of one length for every pair. The user's length comes
// first, so that no other pair has the same input.
func digest(user, password []byte) [sha256.Size]byte {
	b := make([]byte, 0, 1+len(user)+len(password))
	b = append(b, byte(len(user)))
	b = append(b, user...)
	return sha256.Sum256(append(b, password...))
}
