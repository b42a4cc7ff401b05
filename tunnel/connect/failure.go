package connect

import (
	"net/http"

	"konnectivity/tunnel"
)

// ServerFailure is what a konnectivity server's refusal says about the dial:
// by its body, since servers before ours pass the agent's words on in one and
// the same 502, or where that says nothing by the status.
func ServerFailure(e *StatusError) tunnel.Failure {
	if f := tunnel.GuessFailure(e.Body); f != tunnel.FailInternal {
		return f
	}
	switch e.Status {
	case http.StatusBadRequest:
		return tunnel.FailBadAddress
	case http.StatusForbidden:
		return tunnel.FailDenied
	case http.StatusProxyAuthRequired, http.StatusUnauthorized:
		return tunnel.FailAuth
	case http.StatusTooManyRequests:
		return tunnel.FailBound
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return tunnel.FailTimeout
	case http.StatusInternalServerError: // upstream: no agent
		return tunnel.FailNoAgent
	case http.StatusServiceUnavailable, http.StatusMethodNotAllowed:
		return tunnel.FailUnavailable
	default:
		return tunnel.FailInternal
	}
}

// ProxyFailure is what the refusal of any other HTTP proxy says. Its body is a
// page for people and is not looked at. To a wrong password, tinyproxy answers
// 401, where RFC 9110 has 407.
func ProxyFailure(e *StatusError) tunnel.Failure {
	switch e.Status {
	case http.StatusProxyAuthRequired, http.StatusUnauthorized:
		return tunnel.FailAuth
	case http.StatusForbidden, http.StatusUnavailableForLegalReasons:
		return tunnel.FailDenied
	case http.StatusGatewayTimeout:
		return tunnel.FailTimeout
	case http.StatusBadGateway:
		return tunnel.FailHostUnreach
	default:
		return tunnel.FailUnavailable
	}
}
