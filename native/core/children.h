// Who sends to one aggregator of a group: workers, and switches below that add for several ranks.
#pragma once

#include <bit>
#include <vector>

#include "core/packet.h"

namespace netfold {

class Children {
 public:
  Children() = default;

  // `addresses` by rank, of the ranks in `ranks`. Those that are reached at one address are behind
  // one switch: a worker has a socket of its own.
  Children(const std::vector<Address>& addresses, uint64_t ranks)
      : ranks_(ranks), behind_(addresses.size()), index_(addresses.size()) {
    for (uint32_t rank = 0; rank < addresses.size(); ++rank) {
      if (!(ranks >> rank & 1)) continue;
      for (uint32_t other = 0; other < addresses.size(); ++other)
        if ((ranks >> other & 1) && addresses[other] == addresses[rank])
          behind_[rank] |= bit_of(other);
      auto const first = static_cast<uint32_t>(std::countr_zero(behind_[rank]));
      index_[rank] = first == rank ? count_++ : index_[first];
    }
  }

  [[nodiscard]] uint64_t ranks() const { return ranks_; }
  [[nodiscard]] uint16_t count() const { return count_; }
  // Number of the child that `rank` is, or is behind; in the order of their lowest ranks, which is
  // the order of the sum.
  [[nodiscard]] uint16_t index_of(uint16_t rank) const { return index_[rank]; }
  // All ranks of that child.
  [[nodiscard]] uint64_t behind(uint16_t rank) const { return behind_[rank]; }

  // Of `receivers` one for each child: it passes on what is for several.
  [[nodiscard]] uint64_t one_each(uint64_t receivers) const {
    uint64_t chosen = 0;
    for (uint64_t left = receivers; left != 0;) {
      auto const rank = static_cast<uint16_t>(std::countr_zero(left));
      chosen |= bit_of(rank);
      left &= ~behind_[rank];
    }
    return chosen;
  }

  // Whether a Data has the whole contribution of one child.
  [[nodiscard]] bool whole(const Header& data) const {
    return data.bitmap == behind_[data.rank] && data.ranks == std::popcount(data.bitmap);
  }

 private:
  uint64_t ranks_ = 0;
  uint16_t count_ = 0;
  std::vector<uint64_t> behind_;
  std::vector<uint16_t> index_;
};

}  // namespace netfold
