#include "cli/member_count.h"

#include "absl/strings/str_cat.h"

namespace rekindle::cli {

std::string MemberCount::Add(const v1::MemberState& member) {
  std::set<uint32_t>& here = by_state_[member.state()];
  here.insert(member.member());
  const bool one = members_ == 1 || (members_ == 0 && here.size() == 1);
  return absl::StrCat(here.size(), members_ == 0 ? "" : absl::StrCat(" of ", members_),
                      one ? " member " : " members ", member.state());
}

void MemberCount::Show(ProgressBar& bar, const v1::GroupEvent& event) {
  if (!event.has_member()) return;
  v1::Progress progress;
  progress.set_phase(Add(event.member()));
  bar.Update(progress);
}

}  // namespace rekindle::cli
