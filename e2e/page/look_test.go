package page

import (
	"fmt"
	"testing"

	"konnectivity/internal/admin"
)

// look shows a scene in both themes and at both sizes, and checks what must hold
// in all of them.
func look(t *testing.T, s *scene, name string, prepare func(b *tab)) {
	for _, v := range []struct {
		theme         string
		width, height int
		phone         bool
	}{{"light", 1280, 1000, false}, {"dark", 1280, 1000, false}, {"light", 375, 812, true}, {"dark", 375, 812, true}} {
		t.Run(fmt.Sprintf("%s %s %d", name, v.theme, v.width), func(t *testing.T) {
			b := openTab(t)
			b.size(v.width, v.height, v.phone)
			b.dark(v.theme == "dark")
			b.open(s.url() + s.path)
			prepare(b)
			if wide := b.eval(`document.documentElement.scrollWidth`); wide != fmt.Sprint(v.width) {
				t.Errorf("the page is %s px wide, the window %d: %s", wide, v.width, b.eval(`[...document.querySelectorAll('body *')].filter(e =>
					e.getBoundingClientRect().right > innerWidth && !e.closest('#scroll')).map(e => e.tagName + '#' + e.id + '.' + e.className + ' ' + e.getBoundingClientRect().right).join(', ')`))
			}
			b.picture(fmt.Sprintf("%s-%s-%d", name, v.theme, v.width), true)
			b.quiet(s.url())
		})
	}
}

func TestLooks(t *testing.T) {
	look(t, lively(t), "lively", func(b *tab) { b.until("the stall", `document.querySelector('#rows tr.stalled') !== null`) })

	empty := newScene(t, func(o *admin.Source) {
		o.Ready = func() error { return fmt.Errorf("no agent is connected") }
	})
	look(t, empty, "empty", func(b *tab) { b.until("word of no agent", `document.querySelector('#right .none.bad') !== null`) })

	many := newScene(t, nil)
	many.crowd(10000)
	look(t, many, "many", func(b *tab) { b.until("the list", `document.querySelector('#count').textContent === '10,000 open'`) })
}

func TestLooksOfDetailAndOfAServerThatIsGone(t *testing.T) {
	s := lively(t)
	b := openTab(t)
	for _, width := range []int{1280, 375} {
		b.size(width, 900, width == 375)
		b.open(s.url())
		b.until("the stall", `document.querySelector('#rows tr.stalled') !== null`)
		b.eval(`document.querySelector('#rows tr.stalled button').click()`)
		b.until("the hops", `document.querySelectorAll('#hops li.stalled').length === 1 && document.querySelector('#hops').textContent.includes('round trip')`)
		b.picture(fmt.Sprint("detail-light-", width), false)
		b.eval(`document.querySelector('#detail').close()`)
		s.stop()
		b.until("word of its going", `document.body.dataset.state === 'lost' && !document.querySelector('#lost').hidden`)
		b.picture(fmt.Sprint("gone-light-", width), true)
		s.serve()
		b.until("its coming back", `document.body.dataset.state === 'live' && document.querySelector('#lost').hidden`)
	}
}
