/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Judges a flow by a pod's rules. */
#ifndef EGRET_JUDGE_H
#define EGRET_JUDGE_H

#include "events.h"
#include "packet.h"
#include "match.h"

#define EGRESS 0
#define INGRESS 1

#define DENY 0
#define ALLOW 1

static __always_inline void count(const void *key)
{
	__u64 *counter = bpf_map_lookup_elem(&egret_counters, key);

	/* Another program may interrupt this one on its processor. */
	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* What no rule decided: counted under a tier that is no tier of policies. */
static __always_inline struct counter_key unruled(__u8 tier, __u8 action, __u8 direction)
{
	struct counter_key key = { .tier = tier, .action = action, .direction = direction };

	return key;
}

static __always_inline void count_unruled(__u8 tier, __u8 action, __u8 direction)
{
	struct counter_key key = unruled(tier, action, direction);

	count(&key);
}

#define TIER_DEFAULT 4
#define TIER_UNPROGRAMMED 5

static __always_inline int same(const struct address *a, const struct address *b)
{
	return a->family == b->family && a->words[0] == b->words[0] && a->words[1] == b->words[1] &&
	       a->words[2] == b->words[2] && a->words[3] == b->words[3];
}

static __always_inline struct address v4(__u32 word)
{
	struct address address = { .family = FAMILY_V4, .words = { word } };

	return address;
}

static __always_inline struct address v6(__u32 a, __u32 b, __u32 c, __u32 d)
{
	struct address address = { .family = FAMILY_V6, .words = { a, b, c, d } };

	if (a == 0 && b == 0 && c == bpf_htonl(0xffff))
		return v4(d);
	return address;
}

/* The pod itself: loopback, the unspecified address (which connects to loopback) and its own addresses.
 * Nothing of this leaves the pod. */
GLOBAL int is_self(const struct pod *pod, const struct address *peer)
{
	if (!pod || !peer)
		return 0;
	if (peer->family == FAMILY_V4) {
		if (peer->words[0] == 0 || (peer->words[0] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000))
			return 1;
	} else if (peer->words[0] == 0 && peer->words[1] == 0 && peer->words[2] == 0 &&
		   (peer->words[3] == 0 || peer->words[3] == bpf_htonl(1))) {
		return 1;
	}
	for (__u32 i = 0; i < MAX_OWN_ADDRESSES; i++)
		if (i < pod->own_count && same(&pod->own[i], peer))
			return 1;
	return 0;
}

/* The pod's first address of a family: a socket that connects may have none yet. */
static __always_inline struct address own_address(const struct pod *pod, __u32 family)
{
	struct address none = { .family = family };

	for (__u32 i = 0; i < MAX_OWN_ADDRESSES; i++)
		if (i < pod->own_count && pod->own[i].family == family)
			return pod->own[i];
	return none;
}

struct judgement {
	const struct chunk *chunk;
	struct flow *flow;
	__u64 now;
	struct list *attribution;
	struct list list;
	__u32 base; /* index of the chunk's first rule */
	__u32 next; /* no rule before this one is asked */
	__u32 verdict;
	__u8 direction;
	__u8 counts_allowed;
};

#define COUNTS_ALLOWED 2

#define NEXT_RULE 0
#define STOP 1
#define UNDECIDED 2

static long judge_by_rule(__u64 index, struct judgement *judgement)
{
	struct flow *flow = judgement->flow;
	const struct rule *rule;
	__u32 number = judgement->base + (__u32)index;

	if (number >= judgement->list.count)
		return STOP;
	/* In assembly, for the compiler knows that this changes nothing, but the verifier does not. */
	asm volatile("%0 &= %1" : "+r"(index) : "i"(RULES_PER_CHUNK - 1));
	rule = &judgement->chunk->rules[index];
	if (number < judgement->next || !matches(rule, flow, judgement->now))
		return NEXT_RULE;
	if (rule->action == ACTION_DENY) {
		judgement->verdict = DENY;
		flow->denied_by = rule->counter;
		*judgement->attribution = rule->attribution;
		return STOP;
	}
	if (judgement->counts_allowed)
		count(&rule->counter);
	if (rule->action == ACTION_PASS) {
		judgement->next = rule->next;
		return NEXT_RULE;
	}
	judgement->verdict = rule->action == ACTION_ALLOW ? ALLOW : DENY;
	return STOP;
}

static long judge_by_chunk(__u64 index, struct judgement *judgement)
{
	struct chunk_key key = { .index = (__u32)index };

	judgement->base = (__u32)index * RULES_PER_CHUNK;
	if (judgement->base >= judgement->list.count)
		return STOP;
	if (judgement->base + RULES_PER_CHUNK <= judgement->next)
		return NEXT_RULE;
	__builtin_memcpy(key.list, judgement->list.digest, DIGEST);
	judgement->chunk = bpf_map_lookup_elem(&egret_rules, &key);
	if (!judgement->chunk || bpf_loop(RULES_PER_CHUNK, judge_by_rule, judgement, 0) < 0) {
		judgement->flow->denied_by = unruled(TIER_UNPROGRAMMED, ACTION_DENY, judgement->direction);
		judgement->verdict = DENY;
		return STOP;
	}
	return judgement->verdict == UNDECIDED ? NEXT_RULE : STOP;
}

/* The rules in order. Counts nothing that is denied, and says which rules the one that denies stands for. */
GLOBAL int walk(const struct list *list, struct flow *flow, struct list *attribution, __u8 flags)
{
	__u8 direction = flags & INGRESS, counts_allowed = flags & COUNTS_ALLOWED;
	struct judgement judgement = {
		.flow = flow,
		.attribution = attribution,
		.now = bpf_ktime_get_boot_ns(),
		.verdict = UNDECIDED,
		.direction = direction,
		.counts_allowed = counts_allowed,
	};

	if (!list || !flow || !attribution)
		return DENY;
	judgement.list = *list;
	if (bpf_loop(MAX_CHUNKS, judge_by_chunk, &judgement, 0) < 0)
		return DENY;
	return judgement.verdict;
}

/* A Deny that stands for several rules is told as the first of them that matches. */
static __always_inline int decide(const struct list *list, struct flow *flow, __u8 flags)
{
	struct list attribution = {}, of_those = {};
	int result = walk(list, flow, &attribution, flags);

	if (result == DENY && attribution.count)
		walk(&attribution, flow, &of_those, flags & INGRESS);
	return result;
}

/* The node translates it, or may: a Service, and ports of the node itself. */
static __always_inline int may_be_translated(const struct address *peer)
{
	return bpf_map_lookup_elem(&egret_translated, peer) != 0;
}

/* Behind the last rule the flow is allowed, as for a pod that no policy selects. User space has written a tier that
 * isolates as one that ends in a rule which denies everything. */
GLOBAL int judge(const struct pod *pod, struct flow *flow, __u8 direction)
{
	const struct list *list, *audit;
	__u8 flags = direction & INGRESS;
	int result = UNDECIDED;

	if (!pod || !flow)
		return DENY;
	if (direction == EGRESS && pod->behind == BEHIND_SERVICES && !flow->is_final && !flow->is_translated &&
	    may_be_translated(&flow->peer))
		return ALLOW;
	list = direction == EGRESS ? &pod->egress : &pod->ingress;
	audit = direction == EGRESS ? &pod->audit_egress : &pod->audit_ingress;
	/* What the packet filter behind allows, it counts. */
	if (!flow->is_counted && !flow->is_backed)
		flags |= COUNTS_ALLOWED;
	if (list->count)
		result = decide(list, flow, flags);
	if (result != ALLOW && result != UNDECIDED) {
		if (flow->is_backed && flow->denied_by.tier == TIER_UNPROGRAMMED) {
			flow->denied_by.action = 0;
			return ALLOW;
		}
		count(&flow->denied_by);
		return DENY;
	}
	if (result == UNDECIDED && (flags & COUNTS_ALLOWED))
		count_unruled(TIER_DEFAULT, ACTION_ALLOW, direction);
	if (audit->count && (flags & COUNTS_ALLOWED) && decide(audit, flow, direction & INGRESS) == DENY) {
		flow->denied_by.action = flow->denied_by.tier == TIER_UNPROGRAMMED ? 0 : ACTION_WOULD_DENY;
		count(&flow->denied_by);
	}
	return ALLOW;
}

static __always_inline void report_denied(const struct pod *pod, const struct flow *flow, const struct address *local,
					  __u16 local_port)
{
	struct denied_socket denied = { .pod = pod->id,
					.local = *local,
					.peer = flow->peer,
					.local_port = local_port,
					.peer_port = flow->port,
					.transport = flow->transport };
	__u8 one = 1;

	bpf_map_update_elem(&egret_denied, &denied, &one, BPF_ANY);
}

#endif
