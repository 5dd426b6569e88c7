// What to do when a supervised job has ended: nothing, because it is done; bring it back, from which image
// and after how long; or give up. Pure: no clock, no input or output. Not thread-safe.
//
// A job that dies again in the same way, without an image of its new life, is taken to have its death in the
// image: the next attempt goes one image further back, and after the oldest to the newest again: what the job
// dies of may lie outside (a server that is away), and pass. The wait grows all the while, and the attempts
// that its user has allowed bound it. Where somebody else may have killed it (SIGKILL, SIGTERM, nobody saw
// it, ...) going back takes four such deaths in a row, since it costs work. An image that can't be restored
// is passed over at once and costs no attempt; after the oldest, where none of the others came to life
// either, the job's beginning is tried, and when that can't be started, it is given up. A restart of the
// machine costs none either where the ended life had come to an image: a job that ends its machine each time
// stays bounded. So does one that ends each time when its daemon has left, with the container that both were
// in, say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace rekindle::supervise {

struct Death {
  enum class Kind {
    kExited,            // code: the exit status
    kSignalled,         // code: the signal
    kOutOfMemory,       // killed by the kernel's or a cgroup's OOM killer
    kHung,              // killed by us: no progress
    kRestoreFailed,     // it did not come to life: the image that it was to go on from can't be restored
    kUnknown,           // nobody saw how: it ended while no daemon ran
    kMachineRestarted,  // with all that ran there
    kDaemonLeft,        // as kUnknown, of a life that its daemon had left as it ended in an orderly way
  };
  Kind kind = Kind::kUnknown;
  int code = 0;
  double lived_seconds = 0;  // since it was started or brought back
  bool image_taken = false;  // in this life
  bool progressed = false;   // further than the life before (the hook's steps); false: or not known
  // The image that this life went on from was taken so shortly before another such end that it may hold its
  // beginning, and this life has not shown that it does not.
  bool image_suspect = false;
};

struct RestartOptions {
  uint32_t restarts = 0;       // attempts in all; 0: it is not brought back
  double backoff_seconds = 1;  // before the second attempt in a row, doubled before each further one
  double backoff_limit_seconds = 300;
};

struct RestartDecision {
  enum class Action { kDone, kRestart, kGiveUp };
  Action action = Action::kGiveUp;
  size_t images_back = 0;   // 0: the newest. As many as there are images, or more: the job's beginning.
  double wait_seconds = 0;  // before that; 0 after a first death
  // For people: "killed by signal 9 (Killed)", "exit status 1 again after 0.4 s, without an image or
  // progress: one image further back".
  std::string why;
  std::string death;  // of that what it comes after: "exit status 1 again after 0.4 s"
};

// Of an image, in images back. Since it was tried there may be newer ones, and others, even itself, may be
// gone.
struct Tried {
  size_t same = 0;     // the image again, or the next older one where it is gone
  size_t further = 0;  // one further back than it
};

// Everything that the policy remembers; kept by the daemon over its own restarts.
struct RestartState {
  uint32_t attempts = 0;
  uint32_t in_a_row = 0;   // deaths without an image or progress between them
  size_t images_back = 0;  // of the last attempt
  Death last;              // that was no kRestoreFailed
  bool has_last = false;
  bool from_beginning = false;  // the last attempt
  // Since the newest was tried last, or anything led further, an image was left that came to life.
  bool blamed = false;
};

class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartOptions& options, RestartState state = {})
      : options_(options), state_(state) {}

  // `images` is how many there are to go on from, those included that could not be restored. `tried`: where
  // that one stands among them by now that the ended life went on from, or that could not be restored;
  // absent: as it did then.
  RestartDecision OnDeath(const Death& death, size_t images, std::optional<Tried> tried = std::nullopt);
  // The last attempt once more, at once: the one that was decided on has not begun.
  RestartDecision Decided() const;
  // The image that is so many back once more, after older ones were tried in its place: what hindered it may
  // pass.
  RestartDecision BackTo(size_t images_back, std::string why);
  const RestartState& state() const { return state_; }

 private:
  RestartDecision OnRestoreFailed(const Death& death, size_t images, const Tried& tried);
  bool LiesInImage(const Death& death) const;
  // Behind the oldest: to the newest again. Not where none came to life: it would never end.
  bool GoesRound(size_t images);
  const char* WhereTo(bool goes_round) const;
  double WaitSeconds() const;

  const RestartOptions options_;
  RestartState state_;
};

// Somebody else may have ended it: what follows from that does not lie in an image.
bool MayComeFromOutside(const Death& death);
// An image from just before it may lead to it again: it is the job that ended, as a launcher does that has
// seen a worker die, whoever has killed that one.
bool MayHoldItsBeginning(const Death& death);

// "exit status 1", "killed by signal 11 (Segmentation fault)", ...
std::string Describe(const Death& death);

}  // namespace rekindle::supervise
