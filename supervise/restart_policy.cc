#include "supervise/restart_policy.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rekindle::supervise {
namespace {

using Action = RestartDecision::Action;

// Deaths in a row, by somebody else's hand as it seems, after which the image is blamed all the same.
constexpr uint32_t kDeathsFromOutside = 4;

bool SameWay(const Death& a, const Death& b) {
  if (a.kind != b.kind) return false;
  return (a.kind != Death::Kind::kExited && a.kind != Death::Kind::kSignalled) || a.code == b.code;
}

// Nothing that the job did, as it seems, so it costs no attempt.
bool IsFree(const Death& death) {
  return death.image_taken &&
         (death.kind == Death::Kind::kMachineRestarted || death.kind == Death::Kind::kDaemonLeft);
}

std::string Lived(const Death& death) { return absl::StrFormat("after %.1f s", death.lived_seconds); }

std::string Restarts(uint32_t count) {
  return count == 1 ? "the one restart is" : absl::StrCat("all ", count, " restarts are");
}

RestartDecision GiveUp(std::string why) {
  RestartDecision decision;
  decision.why = std::move(why);
  return decision;
}

}  // namespace

bool MayComeFromOutside(const Death& death) {
  if (death.kind == Death::Kind::kUnknown || death.kind == Death::Kind::kMachineRestarted ||
      death.kind == Death::Kind::kDaemonLeft) {
    return true;
  }
  // What shells and launchers end with whose child was killed.
  if (death.kind == Death::Kind::kExited) return death.code == 128 + SIGKILL || death.code == 128 + SIGTERM;
  if (death.kind != Death::Kind::kSignalled) return false;
  return death.code == SIGKILL || death.code == SIGTERM || death.code == SIGINT || death.code == SIGHUP;
}

bool MayHoldItsBeginning(const Death& death) {
  return death.kind == Death::Kind::kExited || !MayComeFromOutside(death);
}

std::string Describe(const Death& death) {
  switch (death.kind) {
    case Death::Kind::kExited:
      return absl::StrCat("exit status ", death.code);
    case Death::Kind::kSignalled: {
      const char* name = ::sigdescr_np(death.code);
      return name == nullptr ? absl::StrCat("killed by signal ", death.code)
                             : absl::StrCat("killed by signal ", death.code, " (", name, ")");
    }
    case Death::Kind::kOutOfMemory:
      return "killed because memory ran out";
    case Death::Kind::kHung:
      return "killed because it made no progress";
    case Death::Kind::kRestoreFailed:
      return "could not be restored";
    case Death::Kind::kMachineRestarted:
      return "ended with its machine, which was restarted";
    case Death::Kind::kDaemonLeft:
      return "ended with the daemon's container, or while no daemon ran";
    case Death::Kind::kUnknown:
      break;
  }
  return "ended while nobody watched";
}

RestartDecision RestartPolicy::OnDeath(const Death& death, size_t images, std::optional<Tried> where) {
  const Tried tried = where.value_or(Tried{state_.images_back, state_.images_back + 1});
  if (death.kind == Death::Kind::kExited && death.code == 0) {
    RestartDecision done;
    done.action = Action::kDone;
    done.why = Describe(death);
    return done;
  }
  if (death.kind == Death::Kind::kRestoreFailed) return OnRestoreFailed(death, images, tried);

  const bool again = state_.has_last && SameWay(death, state_.last);
  const bool moved = death.image_taken || death.progressed;
  state_.in_a_row = moved ? 1 : state_.in_a_row + 1;
  if (death.image_taken) state_.images_back = 0;
  if (moved) state_.blamed = false;
  const bool further = again && !moved && LiesInImage(death);
  state_.last = death;
  state_.has_last = true;

  std::string why = Describe(death);
  if (absl::StrContains(why, ", ")) why += ',';
  if (again && !moved) absl::StrAppend(&why, " again");
  absl::StrAppend(&why, " ", Lived(death));
  const bool is_free = IsFree(death);
  if (options_.restarts == 0 || (!is_free && state_.attempts >= options_.restarts)) {
    if (options_.restarts == 0) return GiveUp(absl::StrCat(why, "; it is not to be restarted"));
    if (state_.in_a_row > 1) {
      absl::StrAppend(&why, ", death ", state_.in_a_row, " in a row without an image or progress");
    }
    return GiveUp(absl::StrCat(why, "; ", Restarts(options_.restarts), " used up"));
  }

  if (!is_free) ++state_.attempts;
  // Until an image is blamed it is the newest.
  const size_t same = state_.images_back > 0 ? tried.same : 0;
  state_.images_back = std::min(further ? tried.further : same, images);
  const bool was_at_beginning = state_.from_beginning && !death.image_taken;
  state_.blamed = state_.blamed || further;
  const bool goes_round = further && GoesRound(images);
  state_.from_beginning = state_.images_back >= images;
  RestartDecision decision;
  decision.death = why;
  if (further && !was_at_beginning) {
    absl::StrAppend(&why, ", without an image or progress: ", WhereTo(goes_round));
  }
  decision.action = Action::kRestart;
  decision.images_back = state_.images_back;
  decision.wait_seconds = WaitSeconds();
  decision.why = std::move(why);
  return decision;
}

RestartDecision RestartPolicy::Decided() const {
  RestartDecision decision;
  decision.action = Action::kRestart;
  decision.images_back = state_.images_back;
  decision.death = Describe(state_.last);
  decision.why = "as it was decided before";
  return decision;
}

RestartDecision RestartPolicy::BackTo(size_t images_back, std::string why) {
  state_.images_back = images_back;
  state_.from_beginning = false;
  RestartDecision decision = Decided();
  decision.why = std::move(why);
  return decision;
}

RestartDecision RestartPolicy::OnRestoreFailed(const Death& death, size_t images, const Tried& tried) {
  if (state_.from_beginning) {
    return GiveUp(images == 0 ? "it could not be started, and there is no image of it"
                              : absl::StrCat("it could be restored from none of its images (", images,
                                             "), nor be started from its beginning"));
  }
  state_.images_back = std::min(tried.further, images);
  const bool goes_round = GoesRound(images);
  state_.from_beginning = state_.images_back >= images;
  RestartDecision decision;
  decision.action = Action::kRestart;
  decision.images_back = state_.images_back;
  if (goes_round) decision.wait_seconds = WaitSeconds();
  decision.death = Describe(death);
  decision.why = absl::StrCat(decision.death, ": ", WhereTo(goes_round));
  return decision;
}

bool RestartPolicy::GoesRound(size_t images) {
  if (images == 0 || state_.images_back < images || !state_.blamed) return false;
  state_.images_back = 0;
  state_.blamed = false;
  return true;
}

const char* RestartPolicy::WhereTo(bool goes_round) const {
  if (goes_round) return "from the newest once more, since none that is older leads further";
  return state_.from_beginning ? "from its beginning" : "one image further back";
}

bool RestartPolicy::LiesInImage(const Death& death) const {
  return !MayComeFromOutside(death) || (death.kind == Death::Kind::kExited && death.image_suspect) ||
         state_.in_a_row >= kDeathsFromOutside;
}

double RestartPolicy::WaitSeconds() const {
  if (state_.in_a_row <= 1) return 0;
  const int doublings = static_cast<int>(std::min(state_.in_a_row - 2, 60u));
  return std::max(0.0,
                  std::min(std::ldexp(options_.backoff_seconds, doublings), options_.backoff_limit_seconds));
}

}  // namespace rekindle::supervise
