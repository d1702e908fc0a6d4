// SPDX-License-Identifier: Apache-2.0
/* Judges what a pod opens, where it opens it: connect(2), and sendmsg(2) of sockets that are not
 * connected. A denied call fails with EPERM at once, in the process that made it.
 *
 * The contexts are those of the UAPI header, whose layout is the same on every kernel: nothing has to be
 * relocated, and one object serves all architectures of this byte order. */
#include "maps.h"

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_MPTCP 262
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

#define DENY 0
#define ALLOW 1

/* How long a UDP flow lives without a datagram: nf_conntrack_udp_timeout_stream. */
#define UDP_FLOW_NANOSECONDS (120ULL * 1000000000ULL)

#define PREFIX_OF_SET_AND_FAMILY ((DIGEST + 4) * 8)

struct flow {
	struct address peer;
	__u16 port; /* host order */
	__u8 transport;
};

static __always_inline void count(const void *key)
{
	__u64 *counter = bpf_map_lookup_elem(&egret_counters, key);

	/* Another program may interrupt this one on its processor. */
	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* What no rule decided: counted under a tier that is no tier of policies. */
static __always_inline void count_unruled(__u8 tier, __u8 action)
{
	struct counter_key key = { .tier = tier, .action = action };

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
static __always_inline int is_self(const struct pod *pod, const struct address *peer)
{
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

static __always_inline int in_addresses(const struct rule *rule, const struct flow *flow, __u64 now)
{
	struct member_key key = { .address = flow->peer };
	const struct member *member;

	__builtin_memcpy(key.set, rule->set, DIGEST);
	member = bpf_map_lookup_elem(&egret_members, &key);
	return member && (member->expires == 0 || member->expires > now);
}

static __always_inline int in_networks(const struct rule *rule, const struct flow *flow)
{
	struct network_key key = { .prefix = PREFIX_OF_SET_AND_FAMILY + 128, .address = flow->peer };

	__builtin_memcpy(key.set, rule->set, DIGEST);
	return bpf_map_lookup_elem(&egret_networks, &key) != 0;
}

static __always_inline int in_address_ports(const struct rule *rule, const struct flow *flow)
{
	struct port_key key = { .address = flow->peer, .port = flow->port, .transport = flow->transport };

	__builtin_memcpy(key.set, rule->set, DIGEST);
	return bpf_map_lookup_elem(&egret_ports, &key) != 0;
}

static __always_inline int peer_matches(const struct rule *rule, const struct flow *flow, __u64 now)
{
	switch (rule->peer) {
	case PEER_ANY:
		return 1;
	case PEER_ADDRESSES:
		return in_addresses(rule, flow, now);
	case PEER_NETWORKS:
		return in_networks(rule, flow);
	case PEER_ADDRESS_PORTS:
		return in_address_ports(rule, flow);
	case PEER_OWN_NODE:
		return bpf_map_lookup_elem(&egret_node, &flow->peer) != 0;
	}
	return 0;
}

static __always_inline int port_matches(const struct rule *rule, const struct flow *flow)
{
	return rule->transport == 0 || (rule->transport == flow->transport && rule->first_port <= flow->port &&
					flow->port <= rule->last_port);
}

struct judgement {
	const struct pod *pod;
	const struct flow *flow;
	__u64 now;
	__u32 next; /* no rule before this one is asked */
	__u32 verdict;
};

#define NEXT_RULE 0
#define STOP 1
#define UNDECIDED 2

static long judge_by_rule(__u64 index, struct judgement *judgement)
{
	const struct pod *pod = judgement->pod;
	const struct flow *flow = judgement->flow;
	const struct rule *rule;

	if (index >= MAX_RULES || index >= pod->rules_count)
		return STOP;
	/* In assembly, for the compiler knows that this changes nothing, but the verifier does not. */
	asm volatile("%0 &= %1" : "+r"(index) : "i"(MAX_RULES - 1));
	rule = &pod->rules[index];
	if (index < judgement->next || !port_matches(rule, flow) || !peer_matches(rule, flow, judgement->now))
		return NEXT_RULE;
	count(&rule->counter);
	if (rule->action == ACTION_PASS) {
		judgement->next = rule->next;
		return NEXT_RULE;
	}
	judgement->verdict = rule->action == ACTION_ALLOW ? ALLOW : DENY;
	return STOP;
}

/* The rules in order; behind the last one the flow is allowed, as for a pod that no policy selects. User
 * space has written a tier that isolates as one that ends in a rule which denies everything. */
static __always_inline int judge(const struct pod *pod, const struct flow *flow, __u64 now)
{
	struct judgement judgement = { .pod = pod, .flow = flow, .now = now, .verdict = UNDECIDED };

	/* An unrolled loop of 256 rules takes the verifier 0.7 s for each program; this takes it none. */
	if (bpf_loop(MAX_RULES, judge_by_rule, &judgement, 0) < 0)
		return DENY;
	if (judgement.verdict == UNDECIDED) {
		count_unruled(TIER_DEFAULT, ACTION_ALLOW);
		return ALLOW;
	}
	return judgement.verdict == ALLOW ? ALLOW : DENY;
}

static __always_inline struct udp_key key_of_udp(const struct pod *pod, const struct flow *flow, __u16 local_port)
{
	struct udp_key key = {
		.pod = pod->id, .peer = flow->peer, .peer_port = flow->port, .local_port = local_port
	};

	return key;
}

/* Signed, for another processor may have seen the flow after this one looked at the clock. */
static __always_inline int is_alive(const struct udp_flow *flow, __u64 now)
{
	return (__s64)(now - flow->seen) < (__s64)UDP_FLOW_NANOSECONDS;
}

/* A datagram of a socket that is not connected: part of a flow that is known, or judged. */
static __always_inline int judge_datagram(const struct pod *pod, const struct flow *flow, __u16 local_port, __u64 now)
{
	struct udp_key key = key_of_udp(pod, flow, local_port);
	struct udp_flow *known = bpf_map_lookup_elem(&egret_udp, &key);
	struct udp_flow opened = { .seen = now, .generation = pod->generation };

	if (known && is_alive(known, now) &&
	    (known->generation == 0 || known->generation == pod->generation)) {
		known->seen = now;
		return ALLOW;
	}
	if (judge(pod, flow, now) == DENY)
		return DENY;
	bpf_map_update_elem(&egret_udp, &key, &opened, BPF_ANY);
	return ALLOW;
}

static __always_inline __u8 transport_of(__u32 protocol)
{
	/* What leaves the pod for an MPTCP socket is TCP. */
	return protocol == IPPROTO_MPTCP ? IPPROTO_TCP : protocol;
}

static __always_inline int verdict(struct bpf_sock_addr *ctx, struct address peer)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);
	struct bpf_sock *socket = ctx->sk;
	struct flow flow = {};
	__u64 now;

	if (!pod->programmed) {
		count_unruled(TIER_UNPROGRAMMED, ACTION_DENY);
		return DENY;
	}
	flow.peer = peer;
	flow.port = bpf_ntohs((__u16)ctx->user_port);
	flow.transport = transport_of(ctx->protocol);
	if (is_self(pod, &flow.peer))
		return ALLOW;
	now = bpf_ktime_get_boot_ns();
	/* A socket without a port has sent nothing yet, so it has no flow. */
	if (flow.transport == IPPROTO_UDP && socket && socket->src_port)
		return judge_datagram(pod, &flow, socket->src_port, now) == ALLOW ? 1 : 0;
	return judge(pod, &flow, now) == ALLOW ? 1 : 0;
}

SEC("cgroup/connect4")
int egret_connect4(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v4(ctx->user_ip4)) ? 1 : 0;
}

SEC("cgroup/connect6")
int egret_connect6(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v6(ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3])) ? 1 : 0;
}

SEC("cgroup/sendmsg4")
int egret_sendmsg4(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v4(ctx->user_ip4)) ? 1 : 0;
}

SEC("cgroup/sendmsg6")
int egret_sendmsg6(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v6(ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3])) ? 1 : 0;
}

struct arrival {
	struct address source;
	__u32 ports; /* offset of the UDP header; 0: no UDP header here */
};

static __always_inline struct arrival arrival_v4(struct __sk_buff *skb)
{
	struct arrival arrival = {};
	__u8 header[20];

	if (bpf_skb_load_bytes(skb, 0, header, sizeof(header)))
		return arrival;
	/* Not the first fragment: no ports. */
	if (header[9] != IPPROTO_UDP || (header[6] & 0x1f) || header[7])
		return arrival;
	__builtin_memcpy(&arrival.source.words[0], header + 12, 4);
	arrival.source.family = FAMILY_V4;
	arrival.ports = (header[0] & 0x0f) * 4;
	return arrival;
}

static __always_inline struct arrival arrival_v6(struct __sk_buff *skb)
{
	struct arrival arrival = {};
	__u8 header[40];

	/* Extension headers are not walked: a reply to such a datagram is judged by the rules. */
	if (bpf_skb_load_bytes(skb, 0, header, sizeof(header)) || header[6] != IPPROTO_UDP)
		return arrival;
	__builtin_memcpy(arrival.source.words, header + 8, 16);
	arrival.source.family = FAMILY_V6;
	arrival.ports = 40;
	return arrival;
}

/* Drops nothing. Notes who sent datagrams to a socket of the pod that is not connected, so that a server
 * may answer them. What answers the pod's own flow is known already and is not noted again. */
SEC("cgroup_skb/ingress")
int egret_arrivals(struct __sk_buff *skb)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);
	struct bpf_sock *socket = skb->sk;
	struct udp_flow *known, opened = {};
	struct arrival arrival = {};
	struct flow flow = {};
	struct udp_key key;
	__u16 ports[2];

	if (socket)
		socket = bpf_sk_fullsock(socket);
	if (!pod->programmed || !socket || socket->protocol != IPPROTO_UDP || socket->dst_port)
		return ALLOW;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		arrival = arrival_v4(skb);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		arrival = arrival_v6(skb);
	if (!arrival.ports || bpf_skb_load_bytes(skb, arrival.ports, ports, sizeof(ports)))
		return ALLOW;
	flow.peer = arrival.source;
	flow.port = bpf_ntohs(ports[0]);
	key = key_of_udp(pod, &flow, bpf_ntohs(ports[1]));
	opened.seen = bpf_ktime_get_boot_ns();
	known = bpf_map_lookup_elem(&egret_udp, &key);
	if (known && is_alive(known, opened.seen))
		known->seen = opened.seen;
	else
		bpf_map_update_elem(&egret_udp, &key, &opened, BPF_ANY);
	return ALLOW;
}

/* Cannot refuse anything (a reply of -1 changes nothing, whatever the operation): it counts. */
SEC("sockops")
int egret_established_count(struct bpf_sock_ops *ctx)
{
	__u32 accepted;
	__u64 *counter;

	if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		accepted = 0;
	else if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		accepted = 1;
	else
		return 1;
	counter = bpf_map_lookup_elem(&egret_established, &accepted);
	if (counter)
		__sync_fetch_and_add(counter, 1);
	return 1;
}

char LICENSE[] SEC("license") = "Apache-2.0";
