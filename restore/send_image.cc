#include "restore/send_image.h"

#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"
#include "restore/image_parts.h"

namespace rekindle::restore {
namespace {

using v1::ImageStreamPages;

constexpr uint64_t kRecordPages = (1u << 20) / store::kPageSize;
constexpr uint64_t kBatchBytes = 16u << 20;
// Weights and the like: this much tells that the rest is not worth a try.
constexpr size_t kTrialBytes = 64u << 10;
constexpr int kStreamLevel = 1;
// What a part costs beside its bytes (a commit there, or an object more) is to be little of the time that
// they take; and what is lost with one is to be little, too.
constexpr uint64_t kLeastPartBytes = 128u << 20;
constexpr double kPartSeconds = 30;
constexpr uint64_t kMostGrowth = 8;  // from one part to the next
// Zeros cost nothing, so there may be more of them than a part's origin can count.
constexpr uint64_t kMostPagesInParts = uint64_t{1} << 48;

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

// What one stream brings of an object: pages from `from` to `to`. The base has those before, and of those
// behind only what an earlier image has is told.
struct Window {
  uint64_t from = 0, to = UINT64_MAX;  // addresses
};

// Cuts one object into segments, in the order of their addresses.
class Segmenter {
 public:
  // `changed`: pages that the earlier image has not, or others than these; null: there is none.
  Segmenter(const std::vector<store::PageRun>& runs, const std::vector<store::PageRun>* changed,
            const Window& window)
      : runs_(runs), changed_(changed), window_(window) {}

  // The next ones, with kBatchBytes of data at most; none: it is at its end.
  std::vector<Segment> Next() {
    std::vector<Segment> segments;
    for (size_t data = 0; run_ < runs_.size() && data < kBatchBytes;) {
      const store::PageRun& run = runs_[run_];
      if (at_ < run.address) at_ = run.address;
      const Stretch stretch = run.zero ? Stretch{true, ImageStreamPages::ZERO, UINT64_MAX} : StretchAt(at_);
      Segment segment;
      segment.kind = stretch.kind;
      segment.address = at_;
      uint64_t end = std::min(run.end(), stretch.until);
      if (stretch.sent && segment.kind == ImageStreamPages::DATA) {
        end = std::min(end, at_ + kRecordPages * store::kPageSize);
        segment.at = data;
        data += end - at_;
      }
      segment.pages = (end - at_) / store::kPageSize;
      if (stretch.sent) segments.push_back(std::move(segment));
      at_ = end;
      if (at_ == run.end()) ++run_;
    }
    return segments;
  }

 private:
  struct Stretch {
    bool sent = true;
    ImageStreamPages::Kind kind = ImageStreamPages::DATA;
    uint64_t until = 0;
  };

  Stretch StretchAt(uint64_t address) {
    if (address < window_.from) return {true, ImageStreamPages::BASE, window_.from};
    const auto [as_before, until] = AsBefore(address);
    if (as_before) return {true, ImageStreamPages::BASE, until};
    if (address < window_.to) return {true, ImageStreamPages::DATA, std::min(until, window_.to)};
    return {false, ImageStreamPages::DATA, until};
  }

  // Has the earlier image this page, and up to where is that so?
  std::pair<bool, uint64_t> AsBefore(uint64_t address) {
    if (changed_ == nullptr) return {false, UINT64_MAX};
    while (change_ < changed_->size() && (*changed_)[change_].end() <= address) ++change_;
    if (change_ == changed_->size()) return {true, UINT64_MAX};
    const store::PageRun& change = (*changed_)[change_];
    if (address < change.address) return {true, change.address};
    return {false, change.end()};
  }

  const std::vector<store::PageRun>& runs_;
  const std::vector<store::PageRun>* const changed_;
  const Window window_;
  size_t run_ = 0, change_ = 0;
  uint64_t at_ = 0;
};

// Objects with pages, as one row of pages.
struct PagedObject {
  std::string name;
  std::vector<store::PageRun> runs;
  uint64_t first = 0, pages = 0;  // in the row

  uint64_t end() const { return first + pages; }

  // Where page `at` of the row lies in this object, or where it begins or ends.
  uint64_t AddressOf(uint64_t at) const {
    if (at <= first) return 0;
    uint64_t left = at - first;
    for (const store::PageRun& run : runs) {
      if (left < run.pages) return run.address + left * store::kPageSize;
      left -= run.pages;
    }
    return UINT64_MAX;
  }

  uint64_t PageAt(uint64_t address) const {
    uint64_t at = first;
    for (const store::PageRun& run : runs) {
      if (address >= run.end()) {
        at += run.pages;
      } else if (address > run.address) {
        at += (address - run.address) / store::kPageSize;
      }
    }
    return at;
  }
};

class Sending {
 public:
  Sending(const store::Store& store, const SendOptions& options, store::ImageStreamWriter::Sink sink)
      : store_(store), options_(options), sink_(std::move(sink)) {}

  absl::StatusOr<SentImage> Run() {
    RK_ASSIGN_OR_RETURN(image_, store_.OpenImage(options_.image.digest));
    if (options_.base) RK_RETURN_IF_ERROR(CompareWithBase());
    RK_RETURN_IF_ERROR(FindObjects());
    const std::string origin = store::OriginOf(options_.image);
    const std::string base = options_.base ? store::OriginOf(*options_.base) : "";
    SendPart part;
    part.base = base;
    const bool in_parts = options_.begin_part != nullptr && pages_ < kMostPagesInParts;
    uint64_t at = in_parts ? PagesOfLargestPart(options_.parts_there, origin, base, pages_) : 0;
    if (at > 0) part.base = OriginOfPart(origin, base, at);
    for (uint64_t part_bytes = options_.part_bytes > 0 ? options_.part_bytes : kLeastPartBytes;;) {
      const Stretch stretch = in_parts ? NextStretch(at, part_bytes) : All();
      part.last = stretch.end == pages_;
      part.origin = part.last ? origin : OriginOfPart(origin, base, stretch.end);
      const Stopwatch watch;
      RK_RETURN_IF_ERROR(SendStream(part, stretch));
      if (part.last) return std::move(sent_);
      if (options_.part_bytes == 0) part_bytes = NextPartBytes(stretch, watch.seconds());
      part.base = std::exchange(part.origin, "");
      at = stretch.end;
    }
  }

 private:
  // Pages of the row of all objects, of which so many bytes are data.
  struct Stretch {
    uint64_t begin = 0, end = 0, data_bytes = 0;
  };

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

  absl::Status FindObjects() {
    for (const store::ObjectInfo& object : image_->objects()) {
      if (!object.paged) continue;
      PagedObject& paged = objects_.emplace_back();
      paged.name = object.name;
      paged.first = pages_;
      RK_ASSIGN_OR_RETURN(paged.runs, image_->Runs(object.name));
      for (const store::PageRun& run : paged.runs) paged.pages += run.pages;
      pages_ += paged.pages;
    }
    return absl::OkStatus();
  }

  Segmenter SegmenterOf(const PagedObject& object, const Stretch& stretch) const {
    return {object.runs,
            ChangedOf(object.name),
            {object.AddressOf(stretch.begin), object.AddressOf(stretch.end)}};
  }

  Stretch All() {
    Stretch all{0, pages_, 0};
    for (const PagedObject& object : objects_) {
      Segmenter segmenter = SegmenterOf(object, all);
      for (std::vector<Segment> some; !(some = segmenter.Next()).empty();) {
        for (const Segment& segment : some) {
          if (segment.kind == ImageStreamPages::DATA) all.data_bytes += segment.bytes();
        }
      }
    }
    return all;
  }

  // From page `begin` on so much data; all that is left where that is little more.
  Stretch NextStretch(uint64_t begin, uint64_t bytes) const {
    Stretch left{begin, pages_, 0};
    std::optional<Stretch> next;
    for (const PagedObject& object : objects_) {
      if (object.end() <= begin) continue;
      Segmenter segmenter = SegmenterOf(object, {begin, pages_, 0});
      for (std::vector<Segment> some; !(some = segmenter.Next()).empty();) {
        for (const Segment& segment : some) {
          if (segment.kind != ImageStreamPages::DATA) continue;
          left.data_bytes += segment.bytes();
          if (!next && left.data_bytes >= bytes)
            next = {begin, object.PageAt(segment.address + segment.bytes()), left.data_bytes};
        }
        if (next && left.data_bytes - next->data_bytes >= bytes / 2) return *next;
      }
    }
    return left;
  }

  static uint64_t NextPartBytes(const Stretch& sent, double seconds) {
    const double in_time = static_cast<double>(sent.data_bytes) / std::max(seconds, 1e-3) * kPartSeconds;
    const double most = static_cast<double>(sent.data_bytes) * kMostGrowth;
    return std::max(kLeastPartBytes, static_cast<uint64_t>(std::min(in_time, most)));
  }

  absl::Status SendStream(const SendPart& part, const Stretch& stretch) {
    if (options_.begin_part) RK_RETURN_IF_ERROR(options_.begin_part(part));
    stream_.emplace(sink_);
    RK_RETURN_IF_ERROR(SendHeader(part, stretch));
    done_ = stretch.begin * store::kPageSize;
    for (const PagedObject& object : objects_) RK_RETURN_IF_ERROR(SendPages(object, stretch));
    for (const store::ObjectInfo& object : image_->objects()) {
      // Nobody makes a job of a part, which is told from what is none by its job manifest all the same.
      if (!object.paged && (part.last || object.name == v1::kJobManifestObject))
        RK_RETURN_IF_ERROR(SendBlob(object.name));
    }
    RK_RETURN_IF_ERROR(stream_->End());
    sent_.bytes += stream_->bytes();
    return absl::OkStatus();
  }

  absl::Status SendHeader(const SendPart& part, const Stretch& stretch) {
    const store::ImageInfo& image = options_.image;
    v1::ImageStreamRecord record;
    v1::ImageStreamHeader* header = record.mutable_header();
    header->set_version(store::kImageStreamVersion);
    header->set_made_by(options_.made_by);
    header->set_origin(part.origin);
    header->set_reference(image.reference);
    header->set_base(part.base);
    if (stretch.begin > 0) {
      header->set_base_reference(absl::StrCat("the first part of ", image.reference));
    } else if (options_.base) {
      header->set_base_reference(options_.base->reference);
    }
    if (part.last) header->mutable_labels()->insert(image.labels.begin(), image.labels.end());
    header->set_page_bytes(stretch.data_bytes);
    return stream_->Put(std::move(record));
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
      RK_RETURN_IF_ERROR(stream_->Put(record, record.zstd() ? absl::string_view(compressed) : piece));
    } while (!left.empty());
    return absl::OkStatus();
  }

  absl::Status SendPages(const PagedObject& object, const Stretch& stretch) {
    v1::ImageStreamRecord record;
    record.mutable_object()->set_name(object.name);
    RK_RETURN_IF_ERROR(stream_->Put(std::move(record)));
    Segmenter segmenter = SegmenterOf(object, stretch);
    const Window window{object.AddressOf(stretch.begin), object.AddressOf(stretch.end)};
    Batch batch, next;
    Load(object.name, segmenter.Next(), &batch);
    while (!batch.segments.empty()) {
      std::vector<Segment> following = segmenter.Next();
      absl::Status sent;
      InParallel(2, [&](size_t half) {
        if (half == 0) {
          sent = SendBatch(batch, window);
        } else {
          Load(object.name, std::move(following), &next);
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

  absl::Status SendBatch(Batch& batch, const Window& window) {
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
      RK_RETURN_IF_ERROR(stream_->Put(record, data));
      if (segment.address >= window.from && segment.address < window.to) done_ += segment.bytes();
    }
    if (options_.progress && !options_.progress(done_, pages_ * store::kPageSize)) {
      return absl::CancelledError(absl::StrCat("sending ", options_.image.reference, " was cancelled"));
    }
    return absl::OkStatus();
  }

  const store::Store& store_;
  const SendOptions& options_;
  const store::ImageStreamWriter::Sink sink_;
  std::optional<store::ImageStreamWriter> stream_;
  std::unique_ptr<store::ImageReader> image_;
  std::map<std::string, std::vector<store::PageRun>> changed_;
  std::vector<PagedObject> objects_;
  uint64_t pages_ = 0, done_ = 0;
  SentImage sent_;
};

}  // namespace

absl::StatusOr<SentImage> SendImage(const store::Store& store, const SendOptions& options,
                                    store::ImageStreamWriter::Sink sink) {
  return Sending(store, options, std::move(sink)).Run();
}

}  // namespace rekindle::restore
