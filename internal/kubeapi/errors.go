package kubeapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Reasons of Errors that callers look at (metav1.StatusReason).
const (
	AlreadyExists = "AlreadyExists"
	Conflict      = "Conflict"
	Expired       = "Expired"
	Forbidden     = "Forbidden"
	Gone          = "Gone"
	NotFound      = "NotFound"
	TooMany       = "TooManyRequests"
	Unauthorized  = "Unauthorized"
)

// Error is what an API server says against a request (metav1.Status).
type Error struct {
	Kind    string `json:"kind"`
	Status  string `json:"status"`
	Code    int    `json:"code"` // of HTTP
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// maxMessage is how much of a text of an Error is kept, in characters: each that asks may keep one
// for a while, and logs it.
const maxMessage = 1000

// UnmarshalJSON implements json.Unmarshaler.
func (e *Error) UnmarshalJSON(text []byte) error {
	type plain Error
	if err := json.Unmarshal(text, (*plain)(e)); err != nil {
		return err
	}
	for _, s := range []*string{&e.Kind, &e.Status, &e.Reason, &e.Message} {
		if len(*s) > maxMessage {
			*s = fmt.Sprintf("%.*s", maxMessage, *s) // a copy, which does not hold all of it
		}
	}
	return nil
}

// Error implements error.
func (e *Error) Error() string {
	if e.Message != "" {
		return e.Message
	}
	return fmt.Sprintf("the API server answered %d %s", e.Code, e.Reason)
}

// ReasonOf is the reason of an Error; "": err is none.
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// Denied says that the API lets the caller do nothing of that kind.
func Denied(err error) bool { return ReasonOf(err) == Forbidden || ReasonOf(err) == Unauthorized }

// reasons are for answers without one, such as those of proxies.
var reasons = map[int]string{
	http.StatusUnauthorized: Unauthorized, http.StatusForbidden: Forbidden, http.StatusNotFound: NotFound,
	http.StatusConflict: Conflict, http.StatusGone: Gone, http.StatusTooManyRequests: TooMany,
}

// refusal is the Error that an answer states, and closes it.
func refusal(resp *http.Response) error {
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	e := &Error{Code: resp.StatusCode}
	if err != nil || json.Unmarshal(text, e) != nil || e.Kind != "Status" {
		*e = Error{Code: resp.StatusCode, Message: fmt.Sprintf("the API server answered %s: %.*q", resp.Status, maxMessage, text)}
	}
	e.Reason = cmp.Or(e.Reason, reasons[e.Code])
	return e
}
