package auth

import (
	"errors"
	"time"

	"konnectivity/internal/admission"
)

// rank says how likely a token is worth its review; the lower, the likelier. It is
// a class of the queue for reviews: it decides the order of reviews, and never the
// outcome.
type rank = int

const (
	// proven tokens have been accepted before, or have a signature of one of
	// the API's own keys. Nobody outside the cluster can make one.
	proven rank = iota
	// plausible tokens claim what agents' tokens must. Anybody can make one.
	plausible
	// suspect tokens are plausible, but a plausible token from the same source
	// recently turned out bad.
	suspect
	// doubtful tokens are all others.
	doubtful
)

// precedence is the order in which ranks are considered, turn by turn: the best
// first, with one turn of eight reserved for each of the others, so that a busy
// rank delays the next but never shuts it out.
var precedence = [][]rank{
	2: {plausible, proven, suspect, doubtful},
	5: {suspect, proven, plausible, doubtful},
	7: {doubtful, proven, plausible, suspect},
	0: inOrder, 1: inOrder, 3: inOrder, 4: inOrder, 6: inOrder,
}

var inOrder = []rank{proven, plausible, suspect, doubtful}

// mostRunning is how many reviews of a rank may be in progress at once. An API
// that takes long over bad tokens (a webhook that is asked about opaque ones)
// must leave room for the good.
var mostRunning = []int{proven: 128, plausible: 64, suspect: 32, doubtful: 32}

// errCrowded says that too many wait for a review.
var errCrowded = errors.New("too many wait for a review")

// newReviews returns the queue for reviews.
func newReviews(perSecond float64, burst int) *admission.Queue {
	return admission.NewQueue(admission.QueueConfig{
		Precedence: precedence, Running: mostRunning,
		Every: time.Duration(float64(time.Second) / perSecond), Burst: burst,
		// Anybody further back would be asked to retry in any case.
		Waiting: burst + int(perSecond*reviewTimeout.Seconds()),
	})
}
