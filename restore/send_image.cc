#include "restore/send_image.h"

#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

using v1::ImageStreamPages;

constexpr uint64_t kRecordPages = (1u << 20) / store::kPageSize;
constexpr uint64_t kBatchBytes = 16u << 20;
// Weights and the like: this much tells that the rest is not worth a try.
constexpr size_t kTrialBytes = 64u << 10;
constexpr int kStreamLevel = 1;

// Neighbouring pages that go the same way.
struct Segment {
  ImageStreamPages::Kind kind = ImageStreamPages::DATA;
  uint64_t address = 0, pages = 0;
  size_t at = 0;           // of DATA: where its pages lie in the batch
  std::string compressed;  // empty: better as it is

  uint64_t bytes() const { return pages * store::kPageSize; }
};

// What is read, compressed and sent in one go.
struct Batch {
  std::vector<Segment> segments;
  std::vector<std::byte> data;
  absl::Status status;
};

bool Shrinks(size_t to, size_t from) { return !ZSTD_isError(to) && to < from / 8 * 7; }

// Of one thread.
class Compressor {
 public:
  Compressor() : context_(ZSTD_createCCtx()) {}
  ~Compressor() { ZSTD_freeCCtx(context_); }
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  // Empty: better as it is.
  std::string Compressed(const void* data, size_t bytes) {
    if (bytes > 2 * kTrialBytes && !Shrinks(Try(data, kTrialBytes), kTrialBytes)) return "";
    const size_t n = Try(data, bytes);
    return Shrinks(n, bytes) ? std::string(out_.get(), n) : "";
  }

 private:
  size_t Try(const void* data, size_t bytes) {
    if (const size_t bound = ZSTD_compressBound(bytes); bound > room_) {
      out_.reset(new char[bound]);  // not cleared
      room_ = bound;
    }
    return ZSTD_compressCCtx(context_, out_.get(), room_, data, bytes, kStreamLevel);
  }

  ZSTD_CCtx* const context_;
  std::unique_ptr<char[]> out_;
  size_t room_ = 0;
};

// Cuts one object into segments, in the order of their addresses.
class Segmenter {
 public:
  // `changed`: pages that the base has not, or others than these; null: there is no base.
  Segmenter(const std::vector<store::PageRun>& runs, const std::vector<store::PageRun>* changed)
      : runs_(runs), changed_(changed) {}

  // The next ones, with kBatchBytes of data at most; none: it is at its end.
  std::vector<Segment> Next() {
    std::vector<Segment> segments;
    for (size_t data = 0; run_ < runs_.size() && data < kBatchBytes;) {
      const store::PageRun& run = runs_[run_];
      if (at_ < run.address) at_ = run.address;
      Segment segment;
      segment.address = at_;
      uint64_t end = run.end();
      if (run.zero) {
        segment.kind = ImageStreamPages::ZERO;
      } else {
        const auto [in_base, until] = InBase(at_);
        end = std::min(end, until);
        segment.kind = in_base ? ImageStreamPages::BASE : ImageStreamPages::DATA;
      }
      if (segment.kind == ImageStreamPages::DATA) {
        end = std::min(end, at_ + kRecordPages * store::kPageSize);
        segment.at = data;
        data += end - at_;
      }
      segment.pages = (end - at_) / store::kPageSize;
      segments.push_back(std::move(segment));
      at_ = end;
      if (at_ == run.end()) ++run_;
    }
    return segments;
  }

 private:
  // Has the base this page, and up to where is that so?
  std::pair<bool, uint64_t> InBase(uint64_t address) {
    if (changed_ == nullptr) return {false, UINT64_MAX};
    while (change_ < changed_->size() && (*changed_)[change_].end() <= address) ++change_;
    if (change_ == changed_->size()) return {true, UINT64_MAX};
    const store::PageRun& change = (*changed_)[change_];
    if (address < change.address) return {true, change.address};
    return {false, change.end()};
  }

  const std::vector<store::PageRun>& runs_;
  const std::vector<store::PageRun>* const changed_;
  size_t run_ = 0, change_ = 0;
  uint64_t at_ = 0;
};

class Sending {
 public:
  Sending(const store::Store& store, const SendOptions& options, store::ImageStreamWriter::Sink sink)
      : store_(store), options_(options), stream_(std::move(sink)) {}

  absl::StatusOr<SentImage> Run() {
    RK_ASSIGN_OR_RETURN(image_, store_.OpenImage(options_.image.digest));
    if (options_.base) RK_RETURN_IF_ERROR(CompareWithBase());
    RK_RETURN_IF_ERROR(SendHeader());
    for (const store::ObjectInfo& object : image_->objects()) {
      RK_RETURN_IF_ERROR(object.paged ? SendPages(object.name) : SendBlob(object.name));
    }
    RK_RETURN_IF_ERROR(stream_.End());
    sent_.bytes = stream_.bytes();
    return std::move(sent_);
  }

 private:
  absl::Status CompareWithBase() {
    if (options_.base->digest == options_.image.digest) {
      return absl::InvalidArgumentError(
          absl::StrCat("sending ", options_.image.reference, ": ", options_.base->reference,
                       " is the same image: whoever has it needs nothing of this one"));
    }
    RK_ASSIGN_OR_RETURN(std::vector<store::ObjectDifference> differences,
                        store_.Diff(options_.base->digest, options_.image.digest, options_.cancel));
    for (store::ObjectDifference& difference : differences)
      changed_[difference.name] = std::move(difference.changed);
    return absl::OkStatus();
  }

  absl::Status SendHeader() {
    const store::ImageInfo& image = options_.image;
    v1::ImageStreamRecord record;
    v1::ImageStreamHeader* header = record.mutable_header();
    header->set_version(store::kImageStreamVersion);
    header->set_made_by(options_.made_by);
    header->set_origin(store::OriginOf(image));
    header->set_reference(image.reference);
    if (options_.base) {
      header->set_base(store::OriginOf(*options_.base));
      header->set_base_reference(options_.base->reference);
    }
    header->mutable_labels()->insert(image.labels.begin(), image.labels.end());
    for (const store::ObjectInfo& object : image_->objects()) {
      if (!object.paged) continue;
      total_ += object.bytes;
      RK_ASSIGN_OR_RETURN(const std::vector<store::PageRun> runs, image_->Runs(object.name));
      Segmenter segmenter(runs, ChangedOf(object.name));
      for (std::vector<Segment> part; !(part = segmenter.Next()).empty();) {
        for (const Segment& segment : part) {
          if (segment.kind == ImageStreamPages::DATA) data_bytes_ += segment.bytes();
          if (segment.kind == ImageStreamPages::BASE) sent_.base_bytes += segment.bytes();
        }
      }
    }
    header->set_page_bytes(data_bytes_);
    return stream_.Put(std::move(record));
  }

  const std::vector<store::PageRun>* ChangedOf(const std::string& object) const {
    if (!options_.base) return nullptr;
    auto changed = changed_.find(object);
    // Of an object without a difference all is as in the base.
    static const std::vector<store::PageRun> kNothing;
    return changed == changed_.end() ? &kNothing : &changed->second;
  }

  absl::Status SendBlob(const std::string& name) {
    RK_ASSIGN_OR_RETURN(const std::string content, image_->ReadBlob(name));
    absl::string_view left = content;
    Compressor compressor;
    do {
      const absl::string_view piece = left.substr(0, store::kMaxStreamData);
      left.remove_prefix(piece.size());
      v1::ImageStreamRecord record;
      record.mutable_blob()->set_name(name);
      record.mutable_blob()->set_last(left.empty());
      const std::string compressed = compressor.Compressed(piece.data(), piece.size());
      record.set_zstd(!compressed.empty());
      RK_RETURN_IF_ERROR(stream_.Put(record, record.zstd() ? absl::string_view(compressed) : piece));
    } while (!left.empty());
    return absl::OkStatus();
  }

  absl::Status SendPages(const std::string& name) {
    v1::ImageStreamRecord record;
    record.mutable_object()->set_name(name);
    RK_RETURN_IF_ERROR(stream_.Put(std::move(record)));
    RK_ASSIGN_OR_RETURN(const std::vector<store::PageRun> runs, image_->Runs(name));
    Segmenter segmenter(runs, ChangedOf(name));
    Batch batch, next;
    Load(name, segmenter.Next(), &batch);
    while (!batch.segments.empty()) {
      std::vector<Segment> following = segmenter.Next();
      absl::Status sent;
      InParallel(2, [&](size_t part) {
        if (part == 0) {
          sent = SendBatch(batch);
        } else {
          Load(name, std::move(following), &next);
        }
      });
      RK_RETURN_IF_ERROR(sent);
      std::swap(batch, next);
    }
    return absl::OkStatus();
  }

  void Load(const std::string& name, std::vector<Segment> segments, Batch* batch) const {
    batch->segments = std::move(segments);
    std::vector<Segment*> with_data;
    std::vector<store::PageRun> ranges;
    size_t bytes = 0;
    for (Segment& segment : batch->segments) {
      if (segment.kind != ImageStreamPages::DATA) continue;
      with_data.push_back(&segment);
      ranges.push_back({segment.address, segment.pages, false});
      bytes = segment.at + segment.bytes();
    }
    if (batch->data.size() < bytes) batch->data.resize(bytes);
    // What comes may reach over the borders of segments.
    auto sink = [&](uint64_t address, absl::Span<const std::byte> pages) {
      auto it = std::upper_bound(with_data.begin(), with_data.end(), address,
                                 [](uint64_t a, const Segment* s) { return a < s->address; });
      for (--it; !pages.empty(); ++it) {
        const uint64_t offset = address - (*it)->address;
        const size_t n = std::min<uint64_t>(pages.size(), (*it)->bytes() - offset);
        std::memcpy(batch->data.data() + (*it)->at + offset, pages.data(), n);
        pages.remove_prefix(n);
        address += n;
      }
      return absl::OkStatus();
    };
    batch->status = image_->ReadRanges(name, ranges, sink);
    if (!batch->status.ok()) return;
    std::atomic<size_t> next{0};
    const size_t threads =
        std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), with_data.size());
    InParallel(threads, [&](size_t) {
      Compressor compressor;
      for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < with_data.size();) {
        Segment& segment = *with_data[i];
        segment.compressed = compressor.Compressed(batch->data.data() + segment.at, segment.bytes());
      }
    });
  }

  absl::Status SendBatch(Batch& batch) {
    RK_RETURN_IF_ERROR(batch.status);
    for (Segment& segment : batch.segments) {
      v1::ImageStreamRecord record;
      record.mutable_pages()->set_kind(segment.kind);
      record.mutable_pages()->set_address(segment.address);
      record.mutable_pages()->set_pages(segment.pages);
      absl::string_view data;
      if (segment.kind == ImageStreamPages::DATA) {
        record.set_zstd(!segment.compressed.empty());
        data = record.zstd()
                   ? absl::string_view(segment.compressed)
                   : absl::string_view(reinterpret_cast<const char*>(batch.data.data()) + segment.at,
                                       segment.bytes());
      }
      RK_RETURN_IF_ERROR(stream_.Put(record, data));
      done_ += segment.bytes();
    }
    if (options_.progress && !options_.progress(done_, total_)) {
      return absl::CancelledError(absl::StrCat("sending ", options_.image.reference, " was cancelled"));
    }
    return absl::OkStatus();
  }

  const store::Store& store_;
  const SendOptions& options_;
  store::ImageStreamWriter stream_;
  std::unique_ptr<store::ImageReader> image_;
  std::map<std::string, std::vector<store::PageRun>> changed_;
  uint64_t total_ = 0, data_bytes_ = 0, done_ = 0;
  SentImage sent_;
};

}  // namespace

absl::StatusOr<SentImage> SendImage(const store::Store& store, const SendOptions& options,
                                    store::ImageStreamWriter::Sink sink) {
  return Sending(store, options, std::move(sink)).Run();
}

}  // namespace rekindle::restore
