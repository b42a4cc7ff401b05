package agent

import (
	"maps"
	"strings"
	"time"
	"unicode"
)

const (
	// causeTime is how long a cause has to be away to be news again. Behind a load
	// balancer, several may alternate.
	causeTime = 10 * time.Minute
	// maxCauses bounds those of one address. A server words what it refuses for.
	maxCauses = 8
)

// causes are why attempts at each address have failed lately, so that an operator
// hears of each once. They belong to one goroutine.
type causes map[string]map[string]time.Time // by address; when each was last met

// news notes why an attempt at an address failed, and says whether to log it.
// afresh says that a session was made there since the last failure.
func (c causes) news(address string, err error, afresh bool, now time.Time) bool {
	c.forget(now)
	if afresh || c[address] == nil {
		c[address] = make(map[string]time.Time)
	}
	met, cause := c[address], withoutFigures(err.Error())
	_, known := met[cause]
	if !known && len(met) == maxCauses {
		return false
	}
	met[cause] = now
	return !known
}

// forget drops causes that have not occurred for causeTime.
func (c causes) forget(now time.Time) {
	maps.DeleteFunc(c, func(_ string, met map[string]time.Time) bool {
		maps.DeleteFunc(met, func(_ string, last time.Time) bool { return now.Sub(last) >= causeTime })
		return len(met) == 0
	})
}

// withoutFigures is text without what changes from one attempt to the next, such as
// our port, or the time in a message about a certificate.
func withoutFigures(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, text)
}
