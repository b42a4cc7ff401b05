package hosted

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/sirupsen/logrus"
)

// outage logs once when the API cannot be asked for a Service, and once when it
// can again.
type outage struct {
	log logrus.FieldLogger

	mu    sync.Mutex
	cause string // in words; "" while there is none
}

// note takes the outcome of asking for a Service. It ignores faults of the
// kubeconfig, which its reader logs, and lookups that were given up, which say
// nothing about the API.
func (o *outage) note(err error) {
	if _, config := errors.AsType[*configError](err); config || errors.Is(err, context.Canceled) {
		return
	}
	cause := ""
	switch {
	case err == nil:
	case isStatus(err, http.StatusUnauthorized):
		cause = "the hosted cluster's API does not accept the kubeconfig's credentials; renew them"
	case isStatus(err, http.StatusForbidden):
		cause = "the hosted cluster's API does not let the kubeconfig's user get Services; grant it get, or list and watch"
	default:
		cause = "the hosted cluster's API cannot be asked for Services; retrying"
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if cause == o.cause {
		return
	}
	o.cause = cause
	if cause == "" {
		o.log.Info("the hosted cluster's API answers for Services again")
		return
	}
	o.log.WithError(err).Warn(cause)
}
