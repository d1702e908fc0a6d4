/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Whether a rule is about a flow. */
#ifndef EGRET_MATCH_H
#define EGRET_MATCH_H

#include "events.h"
#include "packet.h"

#define PREFIX_OF_SET_AND_FAMILY ((DIGEST + 4) * 8)
#define PREFIX_OF_SET_PORT_AND_FAMILY ((DIGEST + 4 + 4) * 8)

static __always_inline int in_addresses(const struct rule *rule, const struct flow *flow, __u64 now)
{
	struct member_key key = { .address = flow->peer };
	const struct member *member;

	__builtin_memcpy(key.set, rule->set, DIGEST);
	member = bpf_map_lookup_elem(&egret_members, &key);
	return member && (flow->was_allowed || member->expires == 0 || member->expires > now);
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

static __always_inline int in_network_ports(const struct rule *rule, const struct flow *flow)
{
	struct network_port_key key = { .prefix = PREFIX_OF_SET_PORT_AND_FAMILY + 128,
					.address = flow->peer,
					.port = flow->port,
					.transport = flow->transport };

	__builtin_memcpy(key.set, rule->set, DIGEST);
	return bpf_map_lookup_elem(&egret_net_ports, &key) != 0;
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
	case PEER_NETWORK_PORTS:
		return in_network_ports(rule, flow);
	case PEER_OWN_NODE:
		return bpf_map_lookup_elem(&egret_node, &flow->peer) != 0;
	case PEER_ITSELF:
		return flow->is_itself;
	}
	return 0;
}

static __always_inline int port_matches(const struct rule *rule, const struct flow *flow)
{
	if (rule->transport == TRANSPORT_ICMP)
		return flow->transport == (flow->peer.family == FAMILY_V4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
	return rule->transport == 0 || (rule->transport == flow->transport && rule->first_port <= flow->port &&
					flow->port <= rule->last_port);
}

GLOBAL int matches(const struct rule *rule, const struct flow *flow, __u64 now)
{
	return rule && flow && port_matches(rule, flow) && peer_matches(rule, flow, now);
}

#endif
