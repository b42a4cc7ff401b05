package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"konnectivity/internal/bench"
	"konnectivity/internal/testutil"
)

// trend is how a series goes, in its own unit and hours.
type trend struct {
	level           float64 // the median
	slope           float64 // an hour
	atLeast, atMost float64 // but for chances of 1 in 1,000
}

const (
	// trendWindows is into how many windows the time of a series is divided. A window's
	// minimum counts: what a process holds right after a collection, and between two bursts
	// of load. A leak lifts that; the peaks above it are work.
	trendWindows = 24

	// trendZ is the normal quantile of 1 in 1,000 at either side.
	trendZ = 3.09

	// maxGrowth is how much of its level a series may grow in an hour without being a leak:
	// half of 1 % in 10 minutes.
	maxGrowth = 0.03
)

// trendOf is Theil and Sen's slope, the median of the slopes between any two points, which
// neither an outlier nor the distribution of the noise moves, with the confidence interval
// of Mann and Kendall's test. That test takes points to be independent, which those of a
// process are not: it stays high for some time after a step, and rises from a restart to
// the next. So its variance is enlarged by what neighbours have in common once the slope is
// taken away: (1+r)/(1-r), with r their correlation. A straight rise leaves nothing in common,
// while a step leaves nearly all, and is not taken for a rise. Ties, which would make the
// variance smaller, do not count. Growth is seen beside a level of at least the given one.
func trendOf(level float64, hours, values []float64) trend {
	n := len(values)
	if n < 4 {
		return trend{level: level, atLeast: math.Inf(-1), atMost: math.Inf(1)}
	}
	var slopes []float64
	for i := range n {
		for j := range i {
			slopes = append(slopes, (values[i]-values[j])/(hours[i]-hours[j]))
		}
	}
	slices.Sort(slopes)
	t := trend{level: max(level, bench.Median(values)), slope: bench.Median(slopes), atLeast: math.Inf(-1), atMost: math.Inf(1)}
	rest := make([]float64, n)
	for i := range n {
		rest[i] = values[i] - t.slope*hours[i]
	}
	r := min(neighbours(rest), 0.99)
	if r < 2/math.Sqrt(float64(n)) { // as by chance
		r = 0
	}
	sigma := math.Sqrt(float64(n*(n-1)*(2*n+5)) / 18 * (1 + r) / (1 - r))
	pairs := float64(len(slopes))
	if off := int(math.Floor((pairs - trendZ*sigma) / 2)); off >= 0 {
		t.atLeast, t.atMost = slopes[off], slopes[len(slopes)-1-off]
	}
	return t
}

// grows says whether a series rises for sure, and by more than maxGrowth of its level.
func (t trend) grows() bool { return t.atLeast > 0 && t.slope > maxGrowth*t.level }

// neighbours is the correlation of each value with the next.
func neighbours(values []float64) float64 {
	mean, all, both := 0.0, 0.0, 0.0
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for i, v := range values {
		all += (v - mean) * (v - mean)
		if i > 0 {
			both += (v - mean) * (values[i-1] - mean)
		}
	}
	if all == 0 {
		return 0
	}
	return both / all
}

// windows reduces a series to one point for each window from hour on that has samples.
func windows(hours, values []float64, from, to float64, reduce func([]float64) float64) (at, out []float64) {
	for w := range trendWindows {
		begin, end := from+(to-from)*float64(w)/trendWindows, from+(to-from)*float64(w+1)/trendWindows
		var in []float64
		for i, h := range hours {
			if h >= begin && h < end {
				in = append(in, values[i])
			}
		}
		if len(in) > 0 {
			at, out = append(at, (begin+end)/2), append(out, reduce(in))
		}
	}
	return at, out
}

// Of 40 minutes, a leak of 1 % in 10 is found beside what collections leave behind; noise, a
// step at whatever time, and a process that grows until it is replaced are not.
func TestTrend(t *testing.T) {
	const level, minutes = 30.0, 40.0
	for name, c := range map[string]struct {
		leaks bool
		value func(minute float64, r *rand.Rand, seed uint64) float64
	}{
		"leak":  {true, func(m float64, _ *rand.Rand, _ uint64) float64 { return level * (1 + m/1000) }},
		"noise": {false, func(float64, *rand.Rand, uint64) float64 { return level }},
		"step": {false, func(m float64, _ *rand.Rand, seed uint64) float64 {
			if m < float64(seed%40) {
				return level
			}
			return level * 1.2
		}},
		"generations": {false, func(m float64, _ *rand.Rand, seed uint64) float64 {
			return level * (1 + math.Mod(m+float64(seed), 3+float64(seed%7))/20)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := 0
			for seed := range uint64(500) {
				r := rand.New(rand.NewPCG(seed, 1))
				var hours, values []float64
				for s := 0.0; s < minutes*60; s += 5 {
					hours = append(hours, s/3600)
					garbage := level * (0.005*r.NormFloat64() + 0.1*r.Float64())
					values = append(values, c.value(s/60, r, seed)+garbage)
				}
				at, least := windows(hours, values, 0, minutes/60, slices.Min)
				if got := trendOf(0, at, least); got.grows() != c.leaks {
					wrong++
					t.Logf("seed %d: %v", seed, got)
				}
			}
			t.Logf("%d of 500 are judged wrong", wrong)
			testutil.AtMost(t, wrong, 5, "wrong verdicts of 500")
		})
	}
}

func (t trend) String() string {
	part := func(v float64) float64 { return 100 * v / t.level }
	return fmt.Sprintf("%7.1f, %+.1f %% an hour, from %+.1f to %+.1f %%", t.level, part(t.slope), part(t.atLeast), part(t.atMost))
}
