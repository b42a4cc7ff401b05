package apiserver

import "testing"

func TestStaticPods(t *testing.T) {
	w := newStaticPods(t)
	t.Run("tokens", w.tokens)
	w.test(t)
}

func TestHosted(t *testing.T) {
	w := newHosted(t)
	w.test(t)
	t.Run("sidecars", w.sidecars)
}

func (w *world) test(t *testing.T) {
	t.Run("roles", w.roles)
	t.Run("before", w.everything)
	t.Run("rolling restart", w.rollOver)
	t.Run("after", w.everything)
	t.Run("leases", w.leases)
}
