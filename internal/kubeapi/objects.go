package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Meta is what every object has. Embed it in a type with the part of an object that is used:
// the API's own types would link all of their groups.
type Meta struct {
	TypeMeta
	Metadata `json:"metadata"`
}

// TypeMeta says what an object is.
type TypeMeta struct {
	Kind       string `json:"kind,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
}

func (t *TypeMeta) typ() *TypeMeta { return t }

// Metadata is the part of an object's metadata that is used here, and the fields that an
// update without them would delete.
type Metadata struct {
	Identity
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Finalizers      []string          `json:"finalizers,omitempty"`
	OwnerReferences json.RawMessage   `json:"ownerReferences,omitempty"`
}

func (m *Metadata) metadata() *Metadata { return m }

// Identity says which object it is, and which version of it.
type Identity struct {
	Name            string `json:"name,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

func (i *Identity) id() *Identity { return i }

// Object is a pointer to a type that embeds Meta or, where it is never written and there may be
// many, TypeMeta and Identity.
type Object interface {
	comparable
	typ() *TypeMeta
	id() *Identity
}

// List is a page of objects.
type List[T Object] struct {
	Kind     string       `json:"kind,omitempty"`
	Metadata ListMetadata `json:"metadata"`
	Items    []T          `json:"items"`
	Time     time.Time    `json:"-"` // of the answer, by the API's clock; zero: it does not say
}

// ListMetadata says where a watch goes on from a list, or the next page from this one.
type ListMetadata struct {
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Continue        string `json:"continue,omitempty"` // "": there is no other page
}

// ListOptions select objects, and say which page of them is wanted.
type ListOptions struct {
	Labels, Fields string // selectors; "": all
	Limit          int    // of a page; 0: none
	Continue       string // ListMetadata's; "": the first page
}

// WatchOptions select the objects of a watch, and say where it begins.
type WatchOptions struct {
	Labels, Fields string        // selectors; "": all
	From           string        // resource version
	Time           time.Duration // the API ends the watch then; whole seconds
	Now            *time.Time    // if not nil, set to the time of the answer, as List.Time, before the watch has begun
}

// Event is the type of a watch event.
type Event string

// The events of a watch. A Bookmark has no object but its version.
const (
	Added    Event = "ADDED"
	Modified Event = "MODIFIED"
	Deleted  Event = "DELETED"
	Bookmark Event = "BOOKMARK"

	failed Event = "ERROR" // its object says why
)

// groupVersion is that of all groups that are used.
const groupVersion = "v1"

// kind is a kind of object: the path of its group, the name of its type, and its name in paths.
type kind struct{ group, name, path string }

// Objects is a client of one kind of object, in one namespace or in none. It may be used
// from any goroutine. Every call blocks until the API has answered or its context ends; a
// refusal is an Error.
type Objects[T Object] struct {
	api       *api
	kind      kind
	namespace string
	retries   int // of Create, where the API says when to ask again
	page      int // bytes that a page of List may have
}

// newObjects returns a client for config, which it does not modify, and uses no network.
func newObjects[T Object](config *Config, namespace string, k kind) (Objects[T], error) {
	a, err := newAPI(config)
	return Objects[T]{api: a, kind: k, namespace: namespace, page: maxPage}, err
}

// String is the namespace.
func (o Objects[T]) String() string { return o.namespace }

// CloseIdle closes connections that no call is using.
func (o Objects[T]) CloseIdle() { utilnet.CloseIdleConnectionsFor(o.api.http.Transport) }

// at is a request to all objects, to one of that name, or to a part of that one.
func (o Objects[T]) at(method string, name ...string) request {
	path := "/api/" + groupVersion
	if o.kind.group != "" {
		path = "/apis/" + o.kind.group + "/" + groupVersion
	}
	if o.namespace != "" {
		path += "/namespaces/" + url.PathEscape(o.namespace)
	}
	path += "/" + o.kind.path
	for _, part := range name {
		path += "/" + url.PathEscape(part)
	}
	return request{method: method, path: path}
}

// List reads the objects that opts select, or a page of them.
func (o Objects[T]) List(ctx context.Context, opts ListOptions) (*List[T], error) {
	r, out := o.at(http.MethodGet), &List[T]{}
	r.time = &out.Time
	r.query = query("labelSelector", opts.Labels, "fieldSelector", opts.Fields, "limit", strconv.Itoa(opts.Limit), "continue", opts.Continue)
	resp, err := o.api.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	from := json.NewDecoder(full{&answer{resp.Body, o.page, o.page}})
	if err = o.read(from, out); err == io.EOF && from.InputOffset() > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("the API's answer: %w", err)
	}
	drain(resp)
	return out, isOf(out.Kind, o.kind.name+"List")
}

// read decodes a page one object at a time, so that the text of no more than one is held.
func (o Objects[T]) read(from *json.Decoder, page *List[T]) error {
	return members(from, func(name string) error {
		switch name {
		case "kind":
			return from.Decode(&page.Kind)
		case "metadata":
			return from.Decode(&page.Metadata)
		case "items":
			return within(from, '[', func() error {
				var object T
				if err := from.Decode(&object); err != nil {
					return err
				}
				if page.Items = append(page.Items, object); len(page.Items) > o.page/leastObject {
					return fmt.Errorf("%w: more than %d objects", errLong, o.page/leastObject)
				}
				return o.check(object)
			})
		}
		return from.Decode(new(json.RawMessage))
	})
}

// query is that of names, each followed by its value; "": it is left out.
func query(pairs ...string) url.Values {
	q := make(url.Values)
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			q.Set(pair[0], pair[1])
		}
	}
	return q
}

// Watch follows the objects that opts select. It calls began when the API has agreed, and take
// for each event, until ctx ends or the API ends it: then it returns nil, even if that was in
// the middle of an event, which the next watch gets.
func (o Objects[T]) Watch(ctx context.Context, opts WatchOptions, began func(), take func(Event, T)) error {
	r := o.at(http.MethodGet)
	r.query = query("labelSelector", opts.Labels, "fieldSelector", opts.Fields, "watch", "true", "allowWatchBookmarks", "true",
		"resourceVersion", opts.From, "timeoutSeconds", strconv.Itoa(int(opts.Time.Seconds())))
	r.time = opts.Now
	resp, err := o.api.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	began()
	body := &answer{ReadCloser: resp.Body, most: maxObject}
	var event struct {
		Type   Event
		Object json.RawMessage
	}
	for events := json.NewDecoder(body); ; {
		body.left = maxObject
		event.Type, event.Object = "", event.Object[:0] // of which the next takes the place
		var wrong *json.SyntaxError
		switch err := events.Decode(&event); {
		case errors.As(err, &wrong), errors.Is(err, errLong):
			return fmt.Errorf("the API's watch: %w", err)
		case err != nil:
			return nil
		}
		object, err := o.of(event.Type, event.Object)
		if err != nil {
			return err
		}
		take(event.Type, object)
	}
}

// of is the object of an event.
func (o Objects[T]) of(what Event, text []byte) (object T, err error) {
	if what == failed {
		why := new(Error)
		if err := json.Unmarshal(text, why); err != nil {
			return object, fmt.Errorf("the API's watch: %w", err)
		}
		return object, why
	}
	if err = json.Unmarshal(text, &object); err != nil {
		return object, fmt.Errorf("the API's watch: %w", err)
	}
	return object, o.check(object)
}

// errNull is about an object that is not there.
var errNull = errors.New("the API sent null in place of an object")

func (o Objects[T]) check(object T) error {
	if object == *new(T) {
		return errNull
	}
	return isOf(object.typ().Kind, o.kind.name)
}

// Get reads one object.
func (o Objects[T]) Get(ctx context.Context, name string) (T, error) {
	return o.one(ctx, o.at(http.MethodGet, name))
}

// Create creates an object, of which it sets the kind, and returns it as the API has it.
func (o Objects[T]) Create(ctx context.Context, object T) (T, error) {
	r := o.at(http.MethodPost)
	r.retries = o.retries
	return o.write(ctx, r, object)
}

// Update writes an object, of which it sets the kind, and returns it as the API has it. With
// "status" as its part it writes that alone.
func (o Objects[T]) Update(ctx context.Context, object T, part ...string) (T, error) {
	return o.write(ctx, o.at(http.MethodPut, append([]string{object.id().Name}, part...)...), object)
}

func (o Objects[T]) write(ctx context.Context, r request, object T) (T, error) {
	*object.typ() = TypeMeta{APIVersion: strings.TrimPrefix(o.kind.group+"/"+groupVersion, "/"), Kind: o.kind.name}
	r.body = object
	return o.one(ctx, r)
}

// one sends a request that is answered with an object.
func (o Objects[T]) one(ctx context.Context, r request) (object T, err error) {
	if err = o.api.call(ctx, r, &object, maxObject); err == nil {
		err = o.check(object)
	}
	return object, err
}

// Delete deletes an object, unless it has another version by now; "": whatever it has.
func (o Objects[T]) Delete(ctx context.Context, name, version string) error {
	r := o.at(http.MethodDelete, name)
	if version != "" {
		r.body = struct { // k8s.io/apimachinery/pkg/apis/meta/v1
			Kind          string            `json:"kind"`
			APIVersion    string            `json:"apiVersion"`
			Preconditions map[string]string `json:"preconditions"`
		}{"DeleteOptions", "v1", map[string]string{"resourceVersion": version}}
	}
	return o.api.call(ctx, r, nil, 0)
}
