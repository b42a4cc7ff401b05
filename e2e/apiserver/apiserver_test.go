package apiserver

import "testing"

func TestStaticPods(t *testing.T) { test(t, newStaticPods(t)) }

func TestHosted(t *testing.T) { test(t, newHosted(t)) }

func test(t *testing.T, w *world) {
	t.Run("before", w.everything)
	t.Run("rolling restart", w.rollOver)
	t.Run("after", w.everything)
}
