package shares

import (
	"testing"

	"konnectivity/internal/testutil"
)

// A single client feels pressure at half, three quarters and eight ninths of the budget.
func TestPressure(t *testing.T) {
	one := NewBudget(7200).Share()
	for _, c := range []struct {
		held          int
		want          Pressure
		filling       bool
		scarce, short bool
	}{
		{0, Plenty, false, false, false},
		{1799, Plenty, false, false, false},
		{1800, Plenty, true, false, false},
		{3599, Plenty, true, false, false},
		{3600, Tight, true, true, false},
		{5399, Tight, true, true, false},
		{5400, Short, true, true, true},
		{6399, Short, true, true, true},
		{6400, Out, true, true, true},
	} {
		one.Hold(c.held)
		testutil.Equal(t, one.Pressure(), c.want, "pressure at %d of 7200", c.held)
		testutil.Equal(t, one.Filling(), c.filling, "filling at %d of 7200", c.held)
		testutil.Equal(t, one.Scarce(), c.scarce, "scarce at %d of 7200", c.held)
		testutil.Equal(t, one.Short(), c.short, "short at %d of 7200", c.held)
		one.Give(c.held)
	}
	testutil.Equal(t, one.Used(), 0, "bytes held after all were given back")
}

// What is Divided is a budget of its own, with a bound that it may be at.
func TestDividedBudget(t *testing.T) {
	all := NewBudget(1 << 20)
	part := all.Divided()
	one, other := part.Share(), all.Share()
	part.Bound(1000)
	one.Hold(749)
	testutil.Equal(t, one.AtBound(), false, "at a bound of 1000 with 749")
	testutil.Equal(t, one.Take(1), true, "one byte more is taken")
	testutil.Equal(t, one.AtBound(), true, "at a bound of 1000 with 750")
	other.Hold(2000)
	other.Hold(1 << 20)
	testutil.Equal(t, other.AtBound(), false, "one without a bound is at it")
	other.Give(1 << 20)
	testutil.Equal(t, one.Max(), 1000, "the part's bytes")
	testutil.Equal(t, one.Used(), 750, "the part's bytes that are held")
	testutil.Equal(t, other.Max(), 1<<20, "all bytes")
	testutil.Equal(t, other.Used(), 2750, "all bytes that are held")
	part.Bound(0)
	testutil.Equal(t, one.AtBound(), false, "at a bound that was lifted")
	testutil.Equal(t, one.Number() != 0 && one.Number() != other.Number(), true, "parts have numbers of their own")
	testutil.Equal(t, all.ShareNumbered(7).Number(), 7, "the number of a part")
	testutil.Equal(t, all.Number(), 0, "the number of a whole")
}

// The nil Budget bounds nothing.
func TestNoBudget(t *testing.T) {
	var none *Budget
	testutil.Holds(t, none.Share() == nil && none.Divided() == nil, "its parts bound something")
	none.Bound(1)
	none.Hold(1 << 30)
	testutil.Equal(t, none.Take(1<<30), true, "bytes are taken")
	testutil.Equal(t, none.Pressure(), Plenty, "the pressure")
	testutil.Holds(t, !none.AtBound() && !none.Filling(), "it has a bound")
	testutil.Holds(t, none.Max() == 0 && none.Used() == 0 && none.Number() == 0, "it has figures")
}
