//! A thin layer over kube: watches, indexes, trigger queue, back-off, leader election, health, metrics, events.
