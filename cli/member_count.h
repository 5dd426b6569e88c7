// How far the members of a group are while it is captured or restored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "cli/progress_bar.h"
#include "rekindle/v1/group.pb.h"

namespace rekindle::cli {

// Not thread-safe.
class MemberCount {
 public:
  // `members`: how many there are; 0: that is not known.
  explicit MemberCount(int members = 0) : members_(members) {}

  // "2 of 8 members frozen": how many have come to the state that this one has come to.
  std::string Add(const v1::MemberState& member);
  // Where the event is of a member.
  void Show(ProgressBar& bar, const v1::GroupEvent& event);

 private:
  const int members_;
  std::map<std::string, std::set<uint32_t>> by_state_;
};

}  // namespace rekindle::cli
