// Whether a job still gets anywhere. Pure: no clock. Not thread-safe.
//
// What a job says of itself through the hook counts most: once it has, nothing else does, since a process
// that spins in a lock uses its CPU as well. Before that, any of CPU time, bytes written or read, output and
// work of a GPU is a sign; of CPU time, only more than threads use that merely wake to look for work. A job
// that waits actively, as in a collective that never ends, uses its CPU as well: where output alone is to be
// a sign it is found.
#pragma once

#include <cstdint>

namespace rekindle::supervise {

// Sums over the job's processes; each only grows while a process lives (a sum may fall when one ends).
struct ProgressSample {
  double at_seconds = 0;  // a clock that does not stop while the machine runs
  double cpu_seconds = 0;
  uint64_t io_bytes = 0;      // read and written, by system calls
  uint64_t output_bytes = 0;  // size of its log
  uint64_t reported = 0;      // calls of the hook's progress(), or its step; 0: it says nothing (now)
};

enum class ProgressSign { kAny, kOutput };

class ProgressWatch {
 public:
  // 0: nothing is ever taken for a hang. `sign`: of a job that reports nothing.
  explicit ProgressWatch(double hang_seconds, ProgressSign sign = ProgressSign::kAny)
      : hang_seconds_(hang_seconds), sign_(sign) {}

  // Forgets what was: the job was stopped for a while on purpose, or brought back. Counts from now on.
  void Restart(double now_seconds);
  void Add(const ProgressSample& sample);
  // What was used since the last sample, and the `excused_seconds` since then, were not the job's: it was
  // frozen for an image.
  void Rebase(const ProgressSample& sample, double excused_seconds);
  // The job can't have got any further since the last sample: somebody keeps it from running.
  void Excuse(const ProgressSample& sample);
  bool Hangs(double now_seconds) const;
  // Since the last sign, or since it is watched. 0 before the first call of Restart() or Add().
  double QuietSeconds(double now_seconds) const;
  // It has been watched for as long as a hang lasts, and nothing but CPU time and the like tells of it: a job
  // that waits actively would not be found.
  bool MayHangUnseen(double now_seconds) const;
  // The job got further after this moment: the last sample before the last sign. An image from before it
  // can't be one of a job that hangs.
  double SoundUntilSeconds() const { return sound_until_seconds_; }

 private:
  void Sign(double at_seconds);

  const double hang_seconds_;
  const ProgressSign sign_;
  ProgressSample last_;
  bool has_last_ = false;
  bool watching_ = false;
  bool speaks_ = false;       // it has reported
  double began_seconds_ = 0;  // to be watched
  double last_sign_seconds_ = 0;
  double sound_until_seconds_ = 0;
  double quiet_cpu_seconds_ = 0;  // used since the last sign
};

}  // namespace rekindle::supervise
