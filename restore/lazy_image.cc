#include "restore/lazy_image.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/coding.h"
#include "dedup_store/hashing.h"
#include "rekindle/v1/image_layout.h"
#include "restore/restore.h"
#include "restore/task_memory.h"

namespace rekindle::restore {
namespace {

// After so many the working set is taken for known.
constexpr uint32_t kRecordings = 4;
// More is not kept beside the image in one piece.
constexpr uint64_t kMostKeptBytes = uint64_t{256} << 20;

Sha256Digest DigestOf(const WorkingSet& set) {
  const std::string bytes = set.Encode();
  store::Sha256 sha;
  sha.Update(bytes.data(), bytes.size());
  return sha.Finish();
}

}  // namespace

absl::StatusOr<bool> RemoveWorkingSet(store::Store& store, const std::string& image) {
  bool any = false;
  for (absl::string_view kind : {store::kWorkingSetPagesNote, store::kWorkingSetNote}) {
    absl::Status removed = store.RemoveNote(image, kind);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    any |= removed.ok();
  }
  return any;
}

absl::StatusOr<std::shared_ptr<LazyImage>> LazyImage::Open(store::Store& store, const std::string& image) {
  auto opened = std::make_shared<LazyImage>();
  RK_ASSIGN_OR_RETURN(opened->reader_, store.OpenImage(image));
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, ReadJobManifest(*opened->reader_));
  RK_ASSIGN_OR_RETURN(std::vector<TaskMemory> tasks, ReadTaskMemories(*opened->reader_, manifest));
  std::map<store::FrameId, std::vector<Written>> written;
  for (const TaskMemory& task : tasks) {
    std::vector<AddressRange> areas, written_areas;
    for (const criu::Vma& area : LazyAreas(task)) areas.push_back({area.start, area.end});
    for (const criu::Vma& area : WrittenAreas(task)) written_areas.push_back({area.start, area.end});
    RK_ASSIGN_OR_RETURN(std::vector<store::StoredRun> layout, opened->reader_->Layout(task.object.object()));
    opened->tasks_[task.pid] = std::make_shared<const TaskPages>(layout, areas);
    const TaskPages to_write(layout, written_areas, TaskPages::Zeros::kKeep);
    for (const store::StoredRun& run : to_write.runs()) {
      written[run.zero ? store::FrameId() : run.frame].push_back({task.pid, run});
    }
  }
  for (auto& [frame, runs] : written) opened->written_.emplace_back(frame, std::move(runs));
  absl::MutexLock lock(&opened->mutex_);
  auto note = store.GetNote(opened->reader_->info().digest, store::kWorkingSetNote);
  if (note.ok()) {
    auto set = WorkingSet::Decode(*note);
    if (set.ok()) opened->working_set_ = *std::move(set);
  }
  // One that is damaged is learned anew.
  opened->pieces_ = std::make_shared<const Pieces>(opened->PiecesOf(opened->working_set_));
  return opened;
}

std::string LazyImage::ObjectOf(pid_t pid) { return absl::StrCat(v1::kTaskMemoryPrefix, pid); }

LazyImage::Pieces LazyImage::PiecesOf(const WorkingSet& set) const {
  std::map<std::string, pid_t> pids;
  for (const auto& [pid, pages] : tasks_) pids[ObjectOf(pid)] = pid;
  Pieces pieces;
  for (const TouchedRun& touched : set.runs) {
    auto found = pids.find(set.objects[touched.object]);
    if (found == pids.end()) continue;
    const TaskPages& pages = *PagesOf(found->second);
    const uint64_t end = touched.address + uint64_t{touched.pages} * store::kPageSize;
    for (size_t i = pages.FirstRunBehind(touched.address); i < pages.runs().size(); ++i) {
      const store::StoredRun& run = pages.runs()[i];
      if (run.address >= end) break;
      const uint64_t first = std::max(run.address, touched.address);
      const uint64_t last = std::min(run.address + uint64_t{run.pages} * store::kPageSize, end);
      pieces.push_back({found->second, i, static_cast<uint32_t>((first - run.address) / store::kPageSize),
                        static_cast<uint32_t>((last - first) / store::kPageSize)});
    }
  }
  return pieces;
}

std::shared_ptr<const LazyImage::Pieces> LazyImage::working_set() const {
  absl::MutexLock lock(&mutex_);
  return pieces_;
}

bool LazyImage::Learned() const {
  absl::MutexLock lock(&mutex_);
  return working_set_.recordings >= kRecordings;
}

absl::StatusOr<LazyImage::PrefillMade> LazyImage::Prefill(store::Store& store, FrameCache& cache,
                                                          uint64_t most_bytes) {
  absl::MutexLock one_makes_it(&prefill_mutex_);
  std::shared_ptr<const Pieces> pieces;
  Sha256Digest working_set_digest;
  {
    absl::MutexLock lock(&mutex_);
    if (prefill_ != nullptr || working_set_.recordings < kRecordings) return PrefillMade{prefill_};
    pieces = pieces_;
    working_set_digest = DigestOf(working_set_);
  }
  std::vector<PrefillSource> working_set, to_write;
  for (const Piece& piece : *pieces) {
    const TaskPages& pages = *PagesOf(piece.pid);
    const store::StoredRun& run = pages.runs()[piece.run];
    working_set.push_back({run.frame, run.page_in_frame + piece.first, piece.pages, piece.pid,
                           run.address + uint64_t{piece.first} * store::kPageSize,
                           pages.FirstNumberOf(piece.run) + piece.first});
  }
  for (const auto& [frame, runs] : written_) {
    for (const Written& written : runs) {
      to_write.push_back(
          {frame, written.run.page_in_frame, written.run.pages, written.pid, written.run.address, 0});
    }
  }
  if (PrefillSet::BytesOf(working_set, to_write) > most_bytes) return PrefillMade();
  PrefillMade done;
  done.set = LoadKept(store, working_set_digest, working_set, to_write);
  done.loaded = done.set != nullptr;
  if (!done.loaded) {
    RK_ASSIGN_OR_RETURN(done.set,
                        PrefillSet::Make(*reader_, cache, std::move(working_set), std::move(to_write)));
    done.made = true;
  }
  absl::MutexLock lock(&mutex_);
  if (pieces_ == pieces) prefill_ = done.set;
  return done;
}

Sha256Digest LazyImage::ImageDigest() const {
  Sha256Digest digest{};
  const std::string bytes = store::BytesOfHex(absl::StripPrefix(reader_->info().digest, "sha256:"));
  memcpy(digest.data(), bytes.data(), std::min(bytes.size(), digest.size()));
  return digest;
}

std::shared_ptr<const PrefillSet> LazyImage::LoadKept(store::Store& store,
                                                      const Sha256Digest& working_set_digest,
                                                      const std::vector<PrefillSource>& working_set,
                                                      const std::vector<PrefillSource>& written) const {
  auto note = store.OpenNote(reader_->info().digest, store::kWorkingSetPagesNote);
  absl::Status status = note.status();
  if (note.ok()) {
    auto set = PrefillSet::Load(**note, ImageDigest(), working_set_digest, working_set, written);
    if (set.ok()) return *std::move(set);
    status = set.status();
  }
  // Of another working set: it will be replaced.
  if (!absl::IsNotFound(status) && !absl::IsFailedPrecondition(status)) {
    Log(LogLevel::kWarning, absl::StrCat("what image ", reader_->info().reference,
                                         " needs before it runs is read from its packs: ", status.message()));
  }
  return nullptr;
}

absl::StatusOr<bool> LazyImage::KeepPrefill(store::Store& store, const std::shared_ptr<const PrefillSet>& set,
                                            const std::function<bool()>& go_on) {
  if (set->bytes() > kMostKeptBytes) return false;
  Sha256Digest working_set_digest;
  {
    absl::MutexLock lock(&mutex_);
    if (forgotten_) return false;
    working_set_digest = DigestOf(working_set_);
  }
  RK_ASSIGN_OR_RETURN(std::vector<std::string> parts, set->Keep(ImageDigest(), working_set_digest, go_on));
  const std::vector<absl::string_view> views(parts.begin(), parts.end());
  absl::MutexLock one_keeps_it(&keep_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (forgotten_) return false;
  }
  absl::Status kept = store.PutNote(reader_->info(), store::kWorkingSetPagesNote, views);
  if (absl::IsNotFound(kept)) return false;  // the image was removed meanwhile
  RK_RETURN_IF_ERROR(kept);
  return true;
}

std::shared_ptr<const PrefillSet> LazyImage::prefill() const {
  absl::MutexLock lock(&mutex_);
  return prefill_;
}

uint64_t LazyImage::prefill_bytes() const {
  absl::MutexLock lock(&mutex_);
  return prefill_ == nullptr ? 0 : prefill_->bytes();
}

void LazyImage::DropPrefill() {
  absl::MutexLock lock(&mutex_);
  prefill_.reset();
}

absl::Status LazyImage::Learn(store::Store& store, const std::vector<Touched>& touched, RecordingEnd end) {
  {
    absl::MutexLock lock(&mutex_);
    if (forgotten_) return absl::OkStatus();
    AddRecording(touched, end);
  }
  // Not under the lock that faults wait for: this goes to the disk.
  absl::MutexLock one_keeps_it(&keep_mutex_);
  std::string encoded;
  {
    absl::MutexLock lock(&mutex_);
    if (forgotten_) return absl::OkStatus();
    // With what others have learned meanwhile: who keeps it last keeps all.
    encoded = working_set_.Encode();
  }
  return store.PutNote(reader_->info(), store::kWorkingSetNote, encoded);
}

void LazyImage::AddRecording(const std::vector<Touched>& touched, RecordingEnd end) {
  WorkingSetRecorder recorder;
  // What was in place could not be seen to be touched: it keeps its place.
  for (const TouchedRun& run : working_set_.runs) {
    recorder.Add(working_set_.objects[run.object], run.address, run.pages);
  }
  for (const Touched& page : touched) {
    const TaskPages& pages = *PagesOf(page.pid);
    const size_t run = pages.RunOfNumber(page.number);
    recorder.Add(ObjectOf(page.pid),
                 pages.runs()[run].address + (page.number - pages.FirstNumberOf(run)) * store::kPageSize, 1);
  }
  WorkingSet recording = recorder.Take();
  recording.recorded_unix_ns = UnixNanos();
  recording.end = end;
  working_set_ = Merge(working_set_, recording);
  prefill_.reset();
  pieces_ = std::make_shared<const Pieces>(PiecesOf(working_set_));
}

bool LazyImage::ForgetWorkingSet() {
  bool first;
  {
    absl::MutexLock lock(&mutex_);
    working_set_ = WorkingSet();
    pieces_ = std::make_shared<const Pieces>();
    prefill_.reset();
    first = !std::exchange(forgotten_, true);
  }
  // Whoever is at keeping it has done so when this returns, or will not.
  absl::MutexLock nobody_keeps_it(&keep_mutex_);
  return first;
}

LazyImage::Recorded LazyImage::recorded() const {
  absl::MutexLock lock(&mutex_);
  Recorded recorded{0, working_set_.recordings, working_set_.recorded_unix_ns, working_set_.end};
  for (const Piece& piece : *pieces_) recorded.pages += piece.pages;
  return recorded;
}

std::shared_ptr<const TaskPages> LazyImage::PagesOf(pid_t pid) const {
  auto found = tasks_.find(pid);
  return found == tasks_.end() ? nullptr : found->second;
}

uint64_t LazyImage::pages() const {
  uint64_t pages = 0;
  for (const auto& [pid, task] : tasks_) pages += task->pages();
  return pages;
}

}  // namespace rekindle::restore
