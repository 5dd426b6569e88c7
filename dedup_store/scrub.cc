#include "dedup_store/scrub.h"

#include <linux/ioprio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/held_lock.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/block_io.h"
#include "dedup_store/direct_buffer.h"
#include "dedup_store/frame_loader.h"
#include "dedup_store/locked_file.h"
#include "dedup_store/page_table.h"
#include "dedup_store/scrub_state.h"

namespace rekindle::store {

namespace {

using Part = ScrubDamage::Part;

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
// What is read at a time, and for how long a pack is kept from gc: more than the largest frame.
constexpr uint64_t kStepBytes = kMebibyte;
// How much is read again after the death of a process.
constexpr uint64_t kBytesBetweenSaves = 64 * kMebibyte;
// How often a place is tried of which an error tells nothing, before the pass goes on without it.
constexpr int kTriesOfAPlace = 3;
// For how many places of a pass that the disk refuses to read the pass waits so: one that dies has many.
constexpr int kMostAwaited = 10;
// Of frames that can be read again: then their pages are put into the pack's table, and at its end.
constexpr size_t kMostRemembered = size_t{4} << 20;
// Of a pass's time. The rest is for nights in which the machine is off, and for images that come meanwhile.
constexpr double kShareOfPeriod = 0.8;
constexpr uint64_t kSlowest = kMebibyte, kFastest = 128 * kMebibyte;

// The calling thread comes after all others while this lives: what it reads is for nobody who waits.
class InBackground {
 public:
  InBackground() : thread_(static_cast<pid_t>(::syscall(SYS_gettid))) {
    disk_ = ::syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, thread_);
    ::syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, thread_, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
    nice_ = ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread_));
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(thread_), kNicest);
  }
  ~InBackground() {
    if (disk_ >= 0) ::syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, thread_, disk_);
    // Not permitted to everybody; then the thread stays nice.
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(thread_), nice_);
  }
  InBackground(const InBackground&) = delete;
  InBackground& operator=(const InBackground&) = delete;

 private:
  static constexpr int kNicest = 19;
  const pid_t thread_;
  long disk_ = -1;
  int nice_ = 0;
};

class Scrubber : public Scrub {
 public:
  Scrubber(std::shared_ptr<StoreCore> core, HeldLock lock, ScrubState state)
      : core_(std::move(core)),
        lock_(std::move(lock)),
        state_(std::move(state)),
        loader_(core_->fingerprinter()),
        buffer_(MakeDirectBuffer(kBufferBytes)) {
    // Captures are to know at once what was found before.
    for (const ScrubDamage& known : state_.damage) {
      if (known.part == Part::kChunk) core_->damaged_frames().Add({known.pack, known.frame});
    }
  }

  ~Scrubber() override {
    if (unsaved_bytes_ > 0) Save(/*durable=*/false);
  }

  const ScrubState& state() const override { return state_; }
  absl::StatusOr<uint64_t> BytesLeft() const override { return ScrubBytesLeft(*core_, state_); }
  absl::StatusOr<std::vector<std::string>> ImagesWith(absl::Span<const ScrubDamage> damage) const override {
    return core_->damaged_images().Find(*core_, damage);
  }

  absl::StatusOr<ScrubStep> Next() override {
    // Else every pack would be taken for one that is no more.
    RK_RETURN_IF_ERROR(core_->CheckIsThere());
    if (state_.pass_began_unix_ns == 0) {
      state_.pass_began_unix_ns = UnixNanos();
      state_.pass_bytes = state_.pack = state_.frame = 0;
      awaited_ = 0;
      pack_.reset();
      queue_.clear();
    }
    ScrubStep step;
    RK_RETURN_IF_ERROR(pack_ == nullptr ? OpenNext(step) : ReadFrames(step));
    state_.pass_bytes += step.bytes;
    unsaved_bytes_ += step.bytes;
    if (step.pass_ended) RK_RETURN_IF_ERROR(EndPass(step));
    const bool news = !step.found.empty() || step.pass_ended;
    if (news || unsaved_bytes_ >= kBytesBetweenSaves) Save(news);
    return step;
  }

 private:
  // A step begins and ends within blocks of the disk.
  static constexpr size_t kBufferBytes = kStepBytes + 2 * kDirectAlignment;

  enum class Held { kYes, kBusy, kGone };

  // Opens the pack's file so that gc leaves it alone for as long as it is open.
  absl::StatusOr<Held> Hold(uint64_t id, std::unique_ptr<BlockFile>& file, PackRecord& record,
                            std::vector<bool>& dead) const {
    auto opened = core_->io()->OpenUncached(core_->pack_path(id));
    if (opened.ok()) {
      RK_ASSIGN_OR_RETURN(const bool locked, (*opened)->Lock(LockMode::kShared, false));
      if (!locked) return Held::kBusy;
    }
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().ReadNow());
    RK_ASSIGN_OR_RETURN(const std::optional<PackRecord> listed, txn.FindPack(id));
    if (!listed) return Held::kGone;
    RK_RETURN_IF_ERROR(opened.status());
    RK_ASSIGN_OR_RETURN(std::optional<DeadRecord> known, txn.FindDead(id));
    file = *std::move(opened);
    record = *listed;
    dead = known ? std::move(known->dead) : std::vector<bool>();
    return Held::kYes;
  }

  // The catalog is asked again when all of the list were read: a pass ends with what came meanwhile.
  absl::StatusOr<std::optional<uint64_t>> NextPackId() {
    while (!queue_.empty() && queue_.back() < state_.pack) queue_.pop_back();
    if (queue_.empty()) {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
      RK_ASSIGN_OR_RETURN(const std::vector<PackRecord> packs, txn.Packs());
      for (const PackRecord& pack : packs) {
        if (pack.id >= state_.pack) queue_.push_back(pack.id);
      }
      std::sort(queue_.begin(), queue_.end(), std::greater<>());
    }
    return queue_.empty() ? std::nullopt : std::optional<uint64_t>(queue_.back());
  }

  void Advance() {
    if (pack_ != nullptr) RememberWhole();
    pack_.reset();
    ++state_.pack;  // IDs are random: the last one is no pack's
    state_.frame = 0;
  }

  // An error of which nothing follows for the data yet. What the disk refuses it may give in a while: a path
  // to it is switched, a file server does not answer.
  static bool TellsNothing(const absl::Status& status) {
    if (status.ok() || absl::IsNotFound(status)) return false;
    return !absl::IsDataLoss(status) || IsRefusedByDisk(status);
  }
  // After such an error: whether it came so often that the pass goes on without the place at which it is.
  // What can't be read then counts as damage until a later pass can.
  bool PassesOver(const absl::Status& status) {
    // Of the machine, not of the place: too many open files, no memory.
    if (absl::IsResourceExhausted(status) || !core_->catalog().Read().ok()) return false;
    const std::pair<uint64_t, uint32_t> place{state_.pack, state_.frame};
    const bool news = std::exchange(failed_at_, place) != place;
    if (news) failures_ = 0;
    if (news && IsRefusedByDisk(status)) ++awaited_;
    ++failures_;
    const bool often = failures_ >= kTriesOfAPlace;
    if (!often && (awaited_ <= kMostAwaited || !IsRefusedByDisk(status))) return false;
    // Nothing is said of a disk that is away.
    const absl::Status written = WriteProbe(core_->io(), core_->path());
    return written.ok() || (often && absl::IsResourceExhausted(written));
  }
  static std::string WhyUnread(const absl::Status& status) {
    return absl::StrCat("it could not be read ", kTriesOfAPlace, " times, ", status.message());
  }

  // Reads all of the next pack but its frames.
  absl::Status OpenNext(ScrubStep& step) {
    RK_ASSIGN_OR_RETURN(const std::optional<uint64_t> id, NextPackId());
    if (!id) {
      step.pass_ended = true;
      return absl::OkStatus();
    }
    if (*id != state_.pack) {
      state_.pack = *id;
      state_.frame = 0;
    }
    std::vector<ScrubDamage> damaged;
    const auto read = [&](bool passes_over) {
      const InBackground background;
      absl::MutexLock turn(&core_->pack_turns());
      damaged.clear();
      step.bytes = 0;
      return ReadMetadata(*id, step, passes_over, damaged);
    };
    absl::StatusOr<Held> held = read(/*passes_over=*/false);
    if (TellsNothing(held.status())) {
      if (!PassesOver(held.status())) return held.status();
      held = read(/*passes_over=*/true);
    } else if (!held.ok() || !damaged.empty()) {
      // A wrong bit may have come on the way.
      const absl::StatusOr<Held> again = read(/*passes_over=*/false);
      if (TellsNothing(again.status())) return again.status();
      held = again;
    }
    if (!held.ok()) {
      const absl::Status& status = held.status();
      const bool certain = absl::IsDataLoss(status) || absl::IsNotFound(status);
      Add(step,
          {Part::kPack, *id, 0, 0, 0, 0, 0, certain ? std::string(status.message()) : WhyUnread(status)});
      if (certain) ForgetPack(*id);
      Advance();
      return absl::OkStatus();
    }
    step.busy = *held == Held::kBusy;
    if (*held == Held::kGone) Advance();
    if (*held != Held::kYes) return absl::OkStatus();
    std::erase_if(state_.damage, [&](const ScrubDamage& known) {
      const bool still = std::any_of(damaged.begin(), damaged.end(),
                                     [&](const ScrubDamage& now) { return now.part == known.part; });
      return known.pack == *id && known.part != Part::kChunk && !still;
    });
    for (ScrubDamage& each : damaged) Add(step, std::move(each));
    absl::StatusOr<std::vector<bool>> forgotten = FindForgotten(core_.get(), *pack_);
    if (!forgotten.ok() && !PassesOver(forgotten.status())) {
      pack_.reset();
      return forgotten.status();
    }
    forgotten_ = std::move(forgotten).value_or(std::vector<bool>());
    whole_ = {};
    if (state_.frame >= pack_->frames()) Advance();
    return absl::OkStatus();
  }

  // `passes_over`: a section that can't be read for whatever reason is among the damaged ones.
  absl::StatusOr<Held> ReadMetadata(uint64_t id, ScrubStep& step, bool passes_over,
                                    std::vector<ScrubDamage>& damaged) {
    std::unique_ptr<BlockFile> file;
    PackRecord record;
    std::vector<bool> dead;
    RK_ASSIGN_OR_RETURN(const Held held, Hold(id, file, record, dead));
    if (held != Held::kYes) return held;
    RK_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
    if (size != record.file_bytes) {
      return absl::DataLossError(
          absl::StrCat("pack ", file->path(), ": it has ", size, " bytes instead of ", record.file_bytes));
    }
    RK_ASSIGN_OR_RETURN(std::unique_ptr<Pack> pack, Pack::Open(std::move(file), id, core_->identity().uuid));
    pack->set_dead(std::move(dead));
    const SectionEntry* sections = pack->footer().sections;
    step.bytes += kPackHeaderBytes + kDirectAlignment + DirectCeiling(sections[kFrames].bytes);
    for (PackSection section : {kManifest, kImageRecord}) {
      if (pack->IsDeadFrame(pack->frames())) continue;
      step.bytes += DirectCeiling(sections[section].bytes);
      const absl::Status status = pack->ReadSection(section).status();
      if (TellsNothing(status) && !passes_over) return status;
      if (status.ok()) continue;
      damaged.push_back({section == kManifest ? Part::kManifest : Part::kRecord, id, sections[section].offset,
                         0, 0, 0, 0,
                         absl::IsDataLoss(status) ? std::string(status.message()) : WhyUnread(status)});
    }
    pack->Close();
    pack_ = std::move(pack);
    return Held::kYes;
  }

  absl::Status FailPack(ScrubStep& step, const absl::Status& status) {
    if (!PassesOver(status)) return status;
    Add(step, {Part::kPack, state_.pack, 0, 0, 0, 0, 0, WhyUnread(status)});
    Advance();
    return absl::OkStatus();
  }

  // Frames from state_.frame on, which lie close together.
  absl::Status ReadFrames(ScrubStep& step) {
    std::vector<ScrubDamage> damaged;
    uint32_t begin = state_.frame, end = state_.frame;
    {
      const InBackground background;
      absl::MutexLock turn(&core_->pack_turns());
      std::unique_ptr<BlockFile> file;
      PackRecord record;
      std::vector<bool> dead;
      const absl::StatusOr<Held> held = Hold(pack_->id(), file, record, dead);
      if (!held.ok()) return FailPack(step, held.status());
      step.busy = *held == Held::kBusy;
      if (*held == Held::kGone) Advance();
      if (*held != Held::kYes) return absl::OkStatus();
      pack_->set_dead(std::move(dead));
      while (begin < pack_->frames() && pack_->IsDeadFrame(begin)) ++begin;
      for (end = begin; end < pack_->frames() && !pack_->IsDeadFrame(end); ++end) {
        const uint64_t bytes = EndOf(end) - pack_->frame(begin).offset();
        if (end > begin && bytes > kStepBytes) break;
      }
      const size_t frames_before = whole_.frames.size(), pages_before = whole_.fingerprints.size();
      const auto start_again = [&] {
        damaged.clear();
        whole_.frames.resize(frames_before);
        whole_.fingerprints.resize(pages_before);
      };
      absl::Status verified = Verify(*file, begin, end, /*passes_over=*/false, damaged);
      if (!verified.ok()) start_again();
      if (!verified.ok() && PassesOver(verified)) {
        verified = Verify(*file, begin, end, /*passes_over=*/true, damaged);
        if (!verified.ok()) start_again();
      }
      RK_RETURN_IF_ERROR(verified);
      if (begin < end)
        step.bytes += DirectCeiling(EndOf(end - 1)) - DirectFloor(pack_->frame(begin).offset());
    }
    std::erase_if(state_.damage, [&](const ScrubDamage& known) {
      const bool still = std::any_of(damaged.begin(), damaged.end(),
                                     [&](const ScrubDamage& now) { return now.frame == known.frame; });
      return known.pack == pack_->id() && known.part == Part::kChunk && known.frame >= state_.frame &&
             known.frame < end && !still;
    });
    std::vector<uint32_t> frames;
    for (ScrubDamage& each : damaged) {
      frames.push_back(each.frame);
      Add(step, std::move(each));
    }
    ForgetFrames(core_.get(), *pack_, frames);
    state_.frame = end;
    if (whole_.fingerprints.size() >= kMostRemembered) RememberWhole();
    if (end >= pack_->frames()) Advance();
    return absl::OkStatus();
  }

  uint64_t EndOf(uint32_t frame) const {
    return pack_->frame(frame).offset() + pack_->frame(frame).stored_bytes;
  }

  // `passes_over`: a frame that can't be read for whatever reason is among the damaged ones.
  absl::Status Verify(const BlockFile& file, uint32_t begin, uint32_t end, bool passes_over,
                      std::vector<ScrubDamage>& damaged) {
    if (begin == end) return absl::OkStatus();
    const uint64_t from = DirectFloor(pack_->frame(begin).offset()), to = DirectCeiling(EndOf(end - 1));
    const absl::Status together = file.ReadAt(from, {buffer_.get(), to - from});
    if (TellsNothing(together) && !passes_over) return together;
    for (uint32_t f = begin; f < end; ++f) {
      absl::Status status = together;
      if (status.ok()) status = VerifyFrame(f, buffer_.get() + (pack_->frame(f).offset() - from));
      // Once more by itself: the disk may not give its neighbour, and a wrong bit may have come on the way.
      if (!status.ok()) status = ReadAndVerify(file, f);
      if (status.ok()) continue;
      if (TellsNothing(status) && !passes_over) return status;
      const FrameEntry& frame = pack_->frame(f);
      damaged.push_back({Part::kChunk, pack_->id(), frame.offset(), f, frame.first_page,
                         pack_->FirstPageAfter(f) - frame.first_page, 0,
                         absl::IsDataLoss(status) ? std::string(status.message()) : WhyUnread(status)});
    }
    return absl::OkStatus();
  }

  absl::Status ReadAndVerify(const BlockFile& file, uint32_t f) {
    std::vector<std::byte> stored(pack_->frame(f).stored_bytes);
    RK_RETURN_IF_ERROR(file.ReadAt(pack_->frame(f).offset(), absl::MakeSpan(stored)));
    return VerifyFrame(f, stored.data());
  }

  absl::Status VerifyFrame(uint32_t f, const std::byte* stored) {
    const FrameEntry& frame = pack_->frame(f);
    const Hash128 digest =
        DigestOfFrame(sha_, core_->fingerprinter(), frame.codec(), {stored, frame.stored_bytes});
    if (memcmp(&digest, frame.digest, sizeof frame.digest) != 0) {
      return absl::DataLossError("the data does not fit its digest");
    }
    RK_ASSIGN_OR_RETURN(const absl::Span<const std::byte> pages, loader_.Decode(*pack_, f, stored));
    if (f >= forgotten_.size() || !forgotten_[f]) return absl::OkStatus();
    whole_.frames.push_back(f);
    for (size_t at = 0; at < pages.size(); at += kPageSize) {
      whole_.fingerprints.push_back(core_->fingerprinter().OfPage(pages.data() + at));
    }
    return absl::OkStatus();
  }

  // The frames that were forgotten and could be read, so that new images use them again.
  void RememberWhole() {
    RememberFrames(core_.get(), *pack_, whole_);
    whole_ = {};
  }

  void Add(ScrubStep& step, ScrubDamage damage) {
    const bool known = std::any_of(state_.damage.begin(), state_.damage.end(), [&](const ScrubDamage& other) {
      return other.pack == damage.pack && other.part == damage.part && other.frame == damage.frame;
    });
    if (known) return;
    damage.found_unix_ns = UnixNanos();
    if (state_.damage.size() < kMostDamageKept) state_.damage.push_back(damage);
    step.found.push_back(std::move(damage));
  }

  // Whoever has it open already could still take pages from it.
  void ForgetPack(uint64_t id) const {
    auto open = core_->OpenPack(id);
    if (!open.ok()) return;
    std::vector<uint32_t> frames((*open)->frames());
    for (uint32_t f = 0; f < frames.size(); ++f) frames[f] = f;
    ForgetFrames(core_.get(), **open, frames);
  }

  absl::Status EndPass(ScrubStep& step) {
    step.catalog_problems = core_->catalog().Problems();
    if (!step.catalog_problems.empty()) step.catalog_mended = core_->catalog().Heal();
    RK_RETURN_IF_ERROR(DropDamageThatIsGone(*core_, state_.damage));
    state_.last_began_unix_ns = std::exchange(state_.pass_began_unix_ns, 0);
    state_.last_ended_unix_ns = UnixNanos();
    state_.last_bytes = std::exchange(state_.pass_bytes, 0);
    state_.pack = state_.frame = 0;
    return absl::OkStatus();
  }

  // What can't be kept is read again.
  void Save(bool durable) {
    unsaved_bytes_ = 0;
    if (absl::Status kept = WriteScrubState(core_->path(), state_, durable); !kept.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("how far the store was read again is not kept: ", kept.message()));
    }
  }

  const std::shared_ptr<StoreCore> core_;
  const HeldLock lock_;
  ScrubState state_;
  std::vector<uint64_t> queue_;              // packs, the next one last; those that were read are taken off
  std::unique_ptr<Pack> pack_;               // that is being read; closed
  std::pair<uint64_t, uint32_t> failed_at_;  // pack and frame, and how often
  int failures_ = 0;
  int awaited_ = 0;              // places that the disk has refused in this pass
  std::vector<bool> forgotten_;  // frames of pack_, when it was opened
  WholeFrames whole_;            // of these, and not told yet
  uint64_t unsaved_bytes_ = 0;
  Sha256 sha_;
  FrameLoader loader_;
  const DirectBuffer buffer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Scrub>> OpenScrub(const std::shared_ptr<StoreCore>& core) {
  RK_RETURN_IF_ERROR(core->CheckWritable());
  RK_ASSIGN_OR_RETURN(HeldLock lock, LockScrub(core->path()));
  RK_ASSIGN_OR_RETURN(ScrubState state, ReadScrubState(core->path()));
  return std::make_unique<Scrubber>(core, std::move(lock), std::move(state));
}

uint64_t ScrubRate(uint64_t bytes_left, absl::Duration time_left) {
  const double seconds = absl::ToDoubleSeconds(time_left);
  if (seconds <= 0) return kFastest;
  const double wanted = static_cast<double>(bytes_left) / seconds;
  return static_cast<uint64_t>(
      std::clamp(wanted, static_cast<double>(kSlowest), static_cast<double>(kFastest)));
}

absl::Duration ScrubPause(uint64_t bytes, absl::Duration took, uint64_t bytes_per_second) {
  const absl::Duration should = absl::Seconds(static_cast<double>(bytes) /
                                              static_cast<double>(std::max<uint64_t>(bytes_per_second, 1)));
  return std::max(should - took, absl::ZeroDuration());
}

absl::Duration UntilScrub(const ScrubState& state, absl::Duration period, absl::Time now) {
  if (state.pass_began_unix_ns != 0 || state.last_began_unix_ns == 0) return absl::ZeroDuration();
  // A clock that was set back must not put it off for longer than usual.
  return std::clamp(absl::FromUnixNanos(state.last_began_unix_ns) + period - now, absl::ZeroDuration(),
                    period);
}

absl::Duration ScrubTimeLeft(const ScrubState& state, absl::Duration period, absl::Time now) {
  const absl::Duration all = period * kShareOfPeriod;
  if (state.pass_began_unix_ns == 0) return all;
  return std::clamp(absl::FromUnixNanos(state.pass_began_unix_ns) + all - now, absl::ZeroDuration(), all);
}

}  // namespace rekindle::store
