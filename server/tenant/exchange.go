package tenant

import "time"

// exchange has new readings served that can be together, though none of them can be
// alone: each claims what another of them gives up, as where two tenants swap their
// ports. It says whether there were any.
func (d *Dir) exchange(names []string, owned owners, now time.Time) bool {
	var moving []*entry
	for _, name := range names {
		if e := d.entries[name]; e.serving != nil && e.parsed != nil && e.parsed != e.serving {
			owned.remove(e.serving)
			moving = append(moving, e)
		}
	}
	for before := -1; before != len(moving); { // what one keeps, others cannot have
		before = len(moving)
		moving = owned.fitting(moving)
	}
	for _, e := range moving {
		owned.add(e.parsed)
		d.apply(e, now)
	}
	return len(moving) > 0
}

// fitting returns the entries whose new readings conflict neither with the owners nor
// with each other. The others get back the claims of the specs that they serve.
func (o owners) fitting(moving []*entry) (fit []*entry) {
	var rest []*entry
	for _, e := range moving {
		if e.parsed.taken(o) != nil {
			rest = append(rest, e)
			continue
		}
		o.add(e.parsed)
		fit = append(fit, e)
	}
	for _, e := range fit {
		o.remove(e.parsed)
	}
	for _, e := range rest {
		o.add(e.serving)
	}
	return fit
}
