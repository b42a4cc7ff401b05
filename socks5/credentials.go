package socks5

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/files"
	"konnectivity/internal/wait"

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

// Credentials are users and passwords from a file of lines user:password. It
// is a front.Checker and may be used by any number of goroutines.
type Credentials struct {
	guesses guesses
	users   *files.Followed[[][sha256.Size]byte] // see digest; the passwords themselves are not kept
	log     logrus.FieldLogger
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
	users, err := files.Follow(path, maxCredentialsFile, recheck, func(text []byte) ([][sha256.Size]byte, error) {
		users, err := parseCredentials(text)
		if err != nil {
			return nil, fmt.Errorf("SOCKS5 credentials %s: %w", path, err)
		}
		return users, nil
	}, func(err error) {
		log.WithError(err).Warn("the changed SOCKS5 credentials cannot be used; the old ones stay in use")
	})
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread):
		return nil, fmt.Errorf("read SOCKS5 credentials: %w", err)
	case err != nil:
		return nil, err
	}
	return &Credentials{users: users, log: log}, nil
}

// Check reports whether a client may pass with user and password. After many
// wrong ones from the client's address it waits, for up to 5 s, and after still
// more it returns false, as it does once ctx ends.
func (c *Credentials) Check(ctx context.Context, client net.Addr, user, password string) bool {
	from := admission.SourceOf(client)
	turn, pause, ok := c.guesses.ask(from, time.Now())
	if !ok {
		c.log.WithField("client", from.String()).Warn("too many wrong passwords from one address; refusing further attempts without checking them")
		wait.For(ctx, guessRefuse)
		return false
	}
	if pause > 0 && !wait.For(ctx, pause) { // the client left, or is to leave
		c.guesses.withdraw(turn)
		return false
	}
	if !c.valid(user, password) {
		return false
	}
	c.guesses.right(turn)
	return true
}

// valid reports whether user has this password. It takes as long for a user that
// exists as for one that does not.
func (c *Credentials) valid(user, password string) bool {
	if len(user) > maxCredential {
		return false
	}
	given := digest([]byte(user), []byte(password))
	found := 0
	for _, u := range c.users.Get() {
		found |= subtle.ConstantTimeCompare(u[:], given[:])
	}
	return found == 1
}

func parseCredentials(text []byte) ([][sha256.Size]byte, error) {
	var users [][sha256.Size]byte
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
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
	if len(users) == 0 {
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
