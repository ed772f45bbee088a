/* The verdict on one packet for one version of a slot (docs/protocol.md, "Slots").
 *
 * C subset, shared by the switch engine and, later, the BPF program: integers only, no payload, no
 * loops, no locks. The caller holds the slot's lock and does the arithmetic the verdict asks for.
 */
#pragma once

#ifdef __cplusplus
#include <cstdint>
#else
#include <stdint.h>
#endif

enum nf_slot_state { NF_SLOT_EMPTY = 0, NF_SLOT_COLLECTING = 1, NF_SLOT_COMPLETE = 2 };

enum nf_slot_verdict {
  NF_VERDICT_FIRST = 0,     /* the first contribution: overwrite the sum */
  NF_VERDICT_ADD = 1,       /* one more contribution: add it */
  NF_VERDICT_DUPLICATE = 2, /* already added, others are missing: answer Have */
  NF_VERDICT_SERVE = 3,     /* the sum is complete: answer with the kept result */
  NF_VERDICT_LATE = 4,      /* of an older chunk: count it, change nothing */
  NF_VERDICT_EARLY = 5      /* its predecessors are not done: no correct worker sends it */
};

/* The `state` of the vectors. One head for each of a slot's two versions. */
struct nf_slot_head {
  uint64_t owner;    /* stream << 32 | low 32 bits of the chunk */
  uint64_t added;    /* ranks whose contribution is in the sum */
  uint64_t received; /* ranks known to hold the result: their next packet on the slot came */
  uint32_t ranks;    /* how many are in `added` */
  uint32_t state;    /* enum nf_slot_state */
  uint32_t last;     /* the rank that completed the slot */
  uint32_t reserved;
};

static inline uint64_t nf_slot_owner(uint32_t stream, uint64_t chunk) {
  return ((uint64_t)stream << 32) | (uint32_t)chunk;
}

static inline uint32_t nf_slot_index(uint64_t chunk, uint32_t slots) {
  return (uint32_t)(chunk % slots);
}

static inline uint32_t nf_slot_version(uint64_t chunk, uint32_t slots) {
  return (uint32_t)(chunk / slots % 2);
}

/* How far owner a is past owner b, in chunks of the same stream; serial-number arithmetic, so a
 * stream outlives the wrap of the low 32 bits. */
static inline int32_t nf_slot_distance(uint64_t a, uint64_t b) {
  return (int32_t)((uint32_t)a - (uint32_t)b);
}

/* May `head` be taken by `owner`, whose packet is the first of its chunk? Release (invariant 3):
 * only when every member of `target` holds the old result. `other` is the slot's other version. */
static inline int nf_slot_may_take(const struct nf_slot_head* head,
                                   const struct nf_slot_head* other, uint64_t owner,
                                   uint64_t target, uint32_t slots) {
  int32_t const step = (int32_t)slots;
  int const predecessor_done =
      other->state == NF_SLOT_EMPTY
          ? 1 /* the caller knows that it is the first on the slot */
          : other->state == NF_SLOT_COMPLETE && nf_slot_distance(owner, other->owner) == step;
  if (!predecessor_done) return 0;
  if (head->state == NF_SLOT_EMPTY) return 1;
  return head->state == NF_SLOT_COMPLETE && head->received == target &&
         nf_slot_distance(owner, head->owner) == 2 * step;
}

/* One data packet for `owner` that contains `ranks` ranks, `bits`: one worker's, or the sum of a
 * switch below; `member` sent the last of them. `target` are the ranks a sum needs. Changes the
 * heads exactly as the verdict says; LATE and EARLY change nothing. */
static inline enum nf_slot_verdict nf_slot_add(struct nf_slot_head* head,
                                               struct nf_slot_head* other, uint64_t owner,
                                               uint64_t bits, uint32_t ranks, uint32_t member,
                                               uint64_t target, uint32_t slots) {
  int const holds = head->state != NF_SLOT_EMPTY && head->owner == owner;
  if (holds) {
    if (head->received & bits) return NF_VERDICT_LATE;
    if (head->state == NF_SLOT_COMPLETE) return NF_VERDICT_SERVE;
    if (head->added & bits) return NF_VERDICT_DUPLICATE;
  } else {
    if (head->state != NF_SLOT_EMPTY && nf_slot_distance(owner, head->owner) < 0)
      return NF_VERDICT_LATE;
    if (other->state != NF_SLOT_EMPTY && nf_slot_distance(owner, other->owner) < 0)
      return NF_VERDICT_LATE;
    if (!nf_slot_may_take(head, other, owner, target, slots)) return NF_VERDICT_EARLY;
    head->owner = owner;
    head->added = 0;
    head->received = 0;
    head->ranks = 0;
    head->last = 0;
    head->state = NF_SLOT_COLLECTING;
  }
  head->added |= bits;
  head->ranks += ranks;
  /* Who sends the next chunk of a slot holds the result of the one before. */
  if (other->state == NF_SLOT_COMPLETE) other->received |= bits;
  if (head->added == target) {
    head->state = NF_SLOT_COMPLETE;
    head->last = member;
  }
  return holds ? NF_VERDICT_ADD : NF_VERDICT_FIRST;
}

/* What a header-only Probe of `member` for `owner` finds: SERVE, DUPLICATE (incomplete; `added`
 * says who is in, perhaps nobody) or LATE (done, and the member is known to hold it). */
static inline enum nf_slot_verdict nf_slot_probe(const struct nf_slot_head* head, uint64_t owner,
                                                 uint32_t member) {
  if (head->state == NF_SLOT_EMPTY) return NF_VERDICT_DUPLICATE;
  if (head->owner == owner) {
    if (head->received >> member & 1) return NF_VERDICT_LATE;
    return head->state == NF_SLOT_COMPLETE ? NF_VERDICT_SERVE : NF_VERDICT_DUPLICATE;
  }
  return nf_slot_distance(owner, head->owner) < 0 ? NF_VERDICT_LATE : NF_VERDICT_DUPLICATE;
}
