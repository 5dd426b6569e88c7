// The images that a supervised job can go on from, as its record has them: which there are, in their order,
// and which of them may go.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/job_descent.h"
#include "dedup_store/store.h"
#include "rekindle/v1/supervised_job.pb.h"
#include "supervise/restart_policy.h"

namespace rekindle::daemon {

// Changes the record. Not thread-safe: for who holds the lock of that.
class RestartPoints {
 public:
  // `record` outlives it.
  explicit RestartPoints(v1::SupervisedJobRecord* record) : record_(*record) {}

  // For an image.
  uint64_t NextNumber();
  // The supervisor takes an image of this name: its number is given before others see it.
  void BeginTaking(std::string image);
  void TakingIsFrozen(int64_t monotonic_ns) { taking_frozen_ns_ = monotonic_ns; }
  void EndTaking() { taking_.clear(); }
  // It has stood still for the image until then (CLOCK_MONOTONIC), which it has therefore outlived only
  // since.
  void RanOnFrom(const std::string& image, int64_t monotonic_ns);
  bool IsTaking() const { return !taking_.empty(); }
  uint64_t taking_number() const { return taking_number_; }

  // There is a new one, taken at `point.taken_ns`. `silent`: the job had reported nothing by then.
  void Add(v1::RestartPoint point, bool silent);
  void Remove(absl::string_view image);
  // What the store has of it, of all those that its owner may use, is what it can go on from. `same_boot`: as
  // that of the record. Returns the names of those that were not known: when they were taken WasTaken is to
  // be told. Until then it counts when they were stored.
  std::vector<std::string> Find(const std::vector<store::ImageInfo>& images, bool same_boot);
  void WasTaken(absl::string_view image, int64_t unix_ns);

  // Are there some that were added since this was asked last?
  bool AnyNew() { return std::exchange(seen_, noted_) != noted_; }
  // Images of this life that were taken until `sound_before_ns` (CLOCK_MONOTONIC; those of before this boot
  // until `sound_before_unix_ns`) hold no death that comes at once, nor does the one that it has gone on from
  // if it has run since then. To be called before images go. `is_over`: the life has ended.
  void NoteSound(int64_t sound_before_ns, int64_t sound_before_unix_ns, bool is_over);
  // What images in the past of the next one hold no such death, as far as was noted; a label.
  std::string Sound() const;
  // Is it of before the job's first report? Another process that takes the job over does not know.
  bool IsSilent(const std::string& digest) const { return silent_.contains(digest); }
  // One of its last life that had run on from it until then (as for NoteSound).
  bool AnyOfLife(int64_t ran_on_until_ns, int64_t ran_on_until_unix_ns) const;
  // The one that the last life went on from, as was noted when that ended. False: or it is not known.
  bool FromMayHoldDeath() const;
  // When the oldest was taken for which files are kept; nothing: there is none.
  std::optional<int64_t> OldestKeptUnixNanos() const;
  // Where the image stands that the last life, or the attempt at one, went on from; nullopt: it is not known.
  std::optional<supervise::Tried> Tried() const;

  // Those that may go. Images from after `sound_before_ns` (CLOCK_MONOTONIC) may hold a death or a hang, as
  // may those of an earlier life from which this one has not come, or that ended soon after.
  // `make_room`: also those that the policy would keep, but for the newest and the one to go back to.
  // `damaged`: their names, sorted; to none of these is gone back.
  std::vector<v1::RestartPoint> Superfluous(bool make_room, int64_t sound_before_ns,
                                            const std::vector<std::string>& damaged = {}) const;
  // Of `images`, as the store lists them (newest first): those of the starts that this one descends from, as
  // far as they lie in its past, but for the points and those that somebody has asked for; the oldest first.
  // Of a record that does not say what that is: those of the start that it went on from, and none once the
  // image which it has begun with is no point any more.
  std::vector<v1::RestartPoint> OfEarlierStarts(const std::vector<store::ImageInfo>& images) const;
  // Of those: which the policy does not keep beside the points, once the `going` ones of these have gone; but
  // for the newest `at_least`.
  std::vector<v1::RestartPoint> BeyondKept(std::vector<v1::RestartPoint> of_earlier_starts,
                                           const std::vector<v1::RestartPoint>& going, size_t at_least) const;
  // The newest of those that holds no death that comes at once, as the image that this start has begun with
  // says: it stays as long as none of this start is known to be such a one. Empty: none.
  std::string SoundOfEarlierStarts(const std::vector<v1::RestartPoint>& of_earlier_starts,
                                   const std::vector<store::ImageInfo>& images) const;
  // Is one of this start's own images, of those that the store has, old enough to go back to? Also what it
  // has begun with may hold the death that ended the start before.
  bool HasSoundOwn(const std::vector<store::ImageInfo>& images, int64_t sound_before_ns) const;
  // Those of a job that hung already since then, which would only hang again.
  std::vector<v1::RestartPoint> OfHang(int64_t hung_since_ns) const;

 private:
  // Of the image that this life has gone on from; nullopt: from none, or it is not known.
  std::optional<uint64_t> FromNumber() const;
  bool IsOfLife(const v1::RestartPoint& point) const { return point.number() > record_.numbers_before(); }
  // An earlier life took it after the image that this one has gone on from: it leads to a death, or to none
  // at all.
  bool IsOnWayToDeath(const v1::RestartPoint& point) const;
  bool LifeBeganBefore(int64_t ns, int64_t unix_ns) const;
  // Had the job run on from it by then? As for NoteSound.
  bool RanOnBefore(const v1::RestartPoint& point, int64_t ns, int64_t unix_ns) const;
  bool IsProven(const v1::RestartPoint& point, int64_t sound_before_ns) const;
  // While this life goes on.
  bool MayBeProven(const v1::RestartPoint& point) const;
  std::string Start() const;  // as in labels
  // Its own images from that number on have come one from the other, as far as they are not on a way to a
  // death.
  uint64_t SoundSince() const;
  // This life has gone back past images since then, which that does not tell yet.
  bool HasGoneBack() const;
  // What is sound of the past, where this start's own images from SoundSince() to `last` count.
  std::vector<SoundStretch> SoundUntil(uint64_t last) const;
  // What of the job's images lies in the past of this start.
  StartsBefore StartsInPast(const std::vector<store::ImageInfo>& images) const;
  void RemoveIf(const std::function<bool(const v1::RestartPoint&)>& goes);
  void Sort();

  v1::SupervisedJobRecord& record_;
  std::set<std::string> silent_;              // digests
  std::map<std::string, int64_t> ran_on_ns_;  // by image, where it is known
  std::string taking_;
  uint64_t taking_number_ = 0;
  int64_t taking_frozen_ns_ = 0;         // when the job stood still for it; 0: not yet
  int64_t sound_before_ns_ = INT64_MIN;  // as was noted last
  // One that began with an image, or is taken over, has some from the start.
  uint64_t noted_ = 1, seen_ = 0;
};

}  // namespace rekindle::daemon
