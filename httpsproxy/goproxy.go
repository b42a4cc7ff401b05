package httpsproxy

import (
	"net/http"
	"strconv"

	"github.com/elazarl/goproxy"
	"github.com/sirupsen/logrus"
)

// newForward returns goproxy without ways out of its own: no environment, no
// CONNECT, no log but ours. It serves requests that belong to an exchange. No
// other file of this package imports it.
func (s *Server) newForward() http.Handler {
	p := goproxy.NewProxyHttpServer()
	p.Tr = s.transport
	p.ConnectDial = nil
	p.Logger = printfLog{s.Log}
	p.KeepAcceptEncoding = true
	p.KeepHeader = true // outgoing drops what goproxy would
	p.NonproxyHandler = http.HandlerFunc(notForProxy)
	p.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		x := exchangeOf(r)
		ctx.RoundTripper = goproxy.RoundTripperFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
			return x.roundTrip(r)
		})
		return r, x.check()
	})
	return p
}

// notForProxy answers a request that names no destination: in origin form, as
// a server gets it, or "*".
func notForProxy(w http.ResponseWriter, r *http.Request) {
	copyResponse(w, exchangeOf(r).refuse(invalid("This is a proxy: it needs an absolute URI (http://host/path) or CONNECT host:port.")))
}

// response returns the refusal in the form that goproxy sends.
func (r *refusal) response(req *http.Request) *http.Response {
	resp := goproxy.NewResponse(req, goproxy.ContentTypeText+"; charset=utf-8", r.status, r.text+"\n")
	resp.Header.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	return resp
}

// printfLog is goproxy's logger. What it warns of is ordinary behaviour of
// clients and destinations.
type printfLog struct{ log logrus.FieldLogger }

// Printf implements goproxy.Logger.
func (l printfLog) Printf(format string, v ...any) { l.log.Debugf("goproxy: "+format, v...) }
