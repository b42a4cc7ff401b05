// Package admin shows what a running process of the suite is doing: its
// connections, its peers, its latest failures and the history of the last 15
// minutes. It consists of a tunnel.Observer that keeps count, a versioned JSON
// API under /api/v1/ (docs/admin-api.md), and a page that reads that API.
//
// Its cost is bounded at 10,000 connections and 1,000 peers: connections come
// and go without a common lock, one goroutine looks at them a few times a
// second, answers are paged, and nothing is locked while they are encoded. It
// is read-only and shows no secrets: only addresses, ids, figures, and those
// reasons for failures that clients are given too.
//
// Servers, agents and sidecars each have a Table and serve a Handler over it.
// The operator's tool reads the API with the same types.
package admin
