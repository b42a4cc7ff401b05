package signer

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/fields"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/observe"
	"konnectivity/internal/pki"
	"konnectivity/internal/wait"
)

const (
	// leastPause is between two looks at the requests that are known. They cost no call of
	// the API, and a pod waits for its certificate. It is also the first pause after a failure;
	// the next ones double up to mostPause.
	leastPause = 500 * time.Millisecond
	mostPause  = 30 * time.Second

	callTime     = 10 * time.Second // for each call of the API
	mostFailures = 8                // in one look; behind them, the API is away or refuses

	// publishTime is between two looks whether the API has the CAs of servers as the file
	// has them. It is not that long after a failure: kubelets wait longer after each look at a
	// bundle that is not there, and the signer may be there before its rights are.
	publishTime = time.Minute
)

// Options are a Signer's. All but Bundles must be given.
type Options struct {
	Name  string // of the signer, as pods name it: DOMAIN/NAME
	Terms Terms
	CA    func() *tls.Certificate // that signs, as it is now

	Requests kubeapi.Objects[*kubeapi.PodCertificateRequest]
	Bundles  kubeapi.Objects[*kubeapi.ClusterTrustBundle]
	Trust    func() (string, error) // PEM of servers' CAs, for Bundles; nil: they are not published

	Log        logrus.FieldLogger
	Registerer prometheus.Registerer
}

// unissued is logged with the reason when a request cannot be answered.
const unissued = "certificates cannot be issued; the signer tries again"

// Signer answers requests. Make it with New, and keep Run running.
type Signer struct {
	opts     Options
	requests *kubeapi.Mirror[*kubeapi.PodCertificateRequest]
	retries  map[string]retry // of pending requests; answerAll's
	answers  *prometheus.CounterVec

	// What publish has written, or found, last, and what of others it has replaced by that.
	published, replaced string
}

// retry is when a request is tried again that could not be answered; zero: at once.
type retry struct {
	at    time.Time
	pause time.Duration // before it
}

// next is the retry behind another failure.
func (r retry) next() retry {
	pause := max(leastPause, min(2*r.pause, mostPause))
	return retry{time.Now().Add(pause), pause}
}

// New returns a signer that has not begun.
func New(opts Options) *Signer {
	s := &Signer{opts: opts, answers: observe.FromZero(prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "konnectivity_signer_requests_total", Help: "Requests for certificates, by how they were answered: issued or denied. failed counts attempts that failed: to answer a request, or to ask the API for requests.",
	}, []string{"result"}), "issued", "denied", "failed")}
	opts.Registerer.MustRegister(s.answers)
	s.requests = kubeapi.NewMirror(opts.Requests, "", fields.OneTermEqualSelector("spec.signerName", opts.Name).String())
	return s
}

// Ready is nil while the API tells of requests, or why it does not. It does not block.
func (s *Signer) Ready() error {
	_, err := s.requests.Names()
	return err
}

// Run answers requests until ctx ends, and returns when all it has begun has ended.
func (s *Signer) Run(ctx context.Context) {
	_ = s.requests.List(ctx) // Names has the error too
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.requests.Run(ctx) })
	if s.opts.Trust != nil {
		running.Go(func() {
			s.repeat(ctx, publishTime, "the servers' CAs cannot be published; the signer tries again", s.publish)
		})
	}
	s.repeat(ctx, leastPause, unissued, s.answerAll)
}

// repeat does something until ctx ends, with a pause of that length in between. After a
// failure the pause is leastPause, and doubles up to mostPause. It is logged as fault, but once
// while it stays the same.
func (s *Signer) repeat(ctx context.Context, every time.Duration, fault string, do func(context.Context) error) {
	logged := ""
	for last := (retry{}); ctx.Err() == nil; {
		err := do(ctx)
		if err == nil {
			last, logged = retry{}, ""
			wait.For(ctx, every)
			continue
		}
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			s.opts.Log.WithError(err).Error(fault)
		}
		last = last.next()
		wait.For(ctx, last.pause)
	}
}

// answerAll answers all that is pending. A request that cannot be answered is tried again later
// and later, and holds up no other; an error means that the next look may as well come later.
func (s *Signer) answerAll(ctx context.Context) error {
	names, fault := s.requests.Names()
	if fault != nil { // there may be requests that are not known
		s.answers.WithLabelValues("failed").Inc()
	}
	// Those that have not failed come first, so that many that fail hold them up no more than few.
	slices.SortFunc(names, func(a, b string) int { return s.retries[a].at.Compare(s.retries[b].at) })
	failures, retries := 0, make(map[string]retry)
	var failed error
	for _, name := range names {
		r, found := s.requests.Get(name)
		last := s.retries[name]
		switch {
		case !found || len(r.Status.Conditions) > 0:
			continue
		case failures == mostFailures || time.Now().Before(last.at):
			retries[name] = last
			continue
		}
		if err := s.answer(ctx, r); err != nil {
			s.answers.WithLabelValues("failed").Inc()
			failed = fmt.Errorf("pod %s/%s: %w", r.Namespace, r.Spec.PodName, err)
			failures++
			retries[name] = last.next()
		}
	}
	s.retries = retries
	if fault != nil || failures == mostFailures {
		return cmp.Or(failed, fault)
	}
	if failed != nil && ctx.Err() == nil {
		s.opts.Log.WithError(failed).Error(unissued)
	}
	return nil
}

// answer writes the answer to one request. It is no error if the request is gone, or if
// another signer has answered it.
func (s *Signer) answer(ctx context.Context, r *kubeapi.PodCertificateRequest) error {
	ca, err := pki.CAOf(*s.opts.CA())
	if err != nil {
		return err
	}
	answered := *r // which is the Mirror's
	if answered.Status, err = s.opts.Terms.Answer(r, ca); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if _, err := s.opts.Requests.Update(ctx, &answered, "status"); err != nil {
		if reason := kubeapi.ReasonOf(err); reason == kubeapi.Conflict || reason == kubeapi.NotFound {
			return nil
		}
		return err
	}
	verdict := answered.Status.Conditions[0]
	s.answers.WithLabelValues(strings.ToLower(verdict.Type)).Inc()
	log := s.opts.Log.WithFields(logrus.Fields{"pod": r.Namespace + "/" + r.Spec.PodName, "node": r.Spec.NodeName})
	if verdict.Type == "Denied" {
		log.WithField("reason", verdict.Message).Warn("a pod was denied a certificate")
		return nil
	}
	log.WithField("until", answered.Status.NotAfter.UTC().Format(time.RFC3339)).Info("a certificate was issued")
	return nil
}

// publish writes the ClusterTrustBundle if it is not as the file of CAs is. One goroutine calls it.
// Signers of one Deployment see a new file at the same time, and the API lets one of them write:
// the others look once more, and find it done.
func (s *Signer) publish(ctx context.Context) error {
	trust, err := s.opts.Trust()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err = s.publishTrust(ctx, trust)
	if reason := kubeapi.ReasonOf(err); reason == kubeapi.Conflict || reason == kubeapi.AlreadyExists {
		err = s.publishTrust(ctx, trust)
	}
	return err
}

// publishTrust is one look at the bundle, and one attempt to write it.
func (s *Signer) publishTrust(ctx context.Context, trust string) error {
	write := func(ctx context.Context, b *kubeapi.ClusterTrustBundle) (*kubeapi.ClusterTrustBundle, error) {
		return s.opts.Bundles.Update(ctx, b)
	}
	bundle, err := s.opts.Bundles.Get(ctx, BundleOf(s.opts.Name))
	switch {
	case kubeapi.ReasonOf(err) == kubeapi.NotFound:
		bundle, write = &kubeapi.ClusterTrustBundle{}, s.opts.Bundles.Create
	case err != nil:
		return err
	case bundle.Spec.TrustBundle == trust:
		s.published = trust
		return nil
	}
	was := bundle.Spec.TrustBundle
	bundle.Name, bundle.Spec = BundleOf(s.opts.Name), kubeapi.ClusterTrustBundleSpec{SignerName: s.opts.Name, TrustBundle: trust}
	if _, err = write(ctx, bundle); err == nil {
		s.logPublished(bundle.Name, was, trust)
	}
	return err
}

// logPublished logs what publish has written. Another signer that publishes other CAs replaces
// them every minute: that is logged the first time.
func (s *Signer) logPublished(bundle, was, trust string) {
	log := s.opts.Log.WithField("bundle", bundle)
	switch {
	case was == "" || trust != s.published:
		log.Info("the servers' CAs were published")
	case was != s.replaced:
		s.replaced = was
		log.Warn("the servers' CAs were published again: something else had published others; all signers of a name need the same --publish-ca")
	}
	s.published = trust
}

// BundleOf is the name of a signer's ClusterTrustBundle, which begins as the API demands.
func BundleOf(signer string) string { return strings.ReplaceAll(signer, "/", ":") + ":servers" }
