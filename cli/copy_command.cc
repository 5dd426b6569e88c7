#include "cli/copy_command.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "cli/arguments.h"
#include "cli/bucket.h"
#include "cli/bucket_copies.h"
#include "cli/copy_source.h"
#include "cli/copy_trace.h"
#include "cli/endpoint.h"
#include "cli/exit_code.h"
#include "cli/image_descent.h"
#include "cli/store_copies.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);
// Without an answer of the other place.
constexpr absl::Duration kTryAgainAfter = absl::Seconds(10), kTryAgainAtLeastEvery = absl::Minutes(1);

// By which is told what older copies are too many: `image`, which was just copied, unless it was brought here
// late and so is no newer than `last`. Who has copied nothing yet (`last` is nothing) looks for that.
absl::StatusOr<v1::Image> NewestOfCopied(const CopySource& source, const v1::Image& image,
                                         std::optional<v1::Image> last) {
  if (!last && image.labels().contains(v1::kOriginLabel)) {
    RK_ASSIGN_OR_RETURN(last, source.NewestAfter(image));
  }
  return last && IsOlderOfJob(image, *last) ? *std::move(last) : image;
}

// Each newest image of a name, until `interrupted`, which `mutex` guards.
void Follow(const CopySource& source, CopyTarget& target, const Output& output, const std::string& name,
            CopyTrace& trace, absl::Mutex& mutex, bool& interrupted) {
  std::string copied, waiting_for, gone, told;
  std::optional<v1::Image>
      begun;  // of which parts are there: to go on with it is less than to begin the next one
  std::optional<v1::Image> last;  // after which what older copies there are is told
  absl::Duration try_again_after = kTryAgainAfter;
  for (;;) {
    absl::Duration wait = kLookEvery;
    if (!trace.knows_of_others()) trace.Tell();
    target.Remember(trace.TakeLearned());
    if (begun && absl::IsNotFound(source.Find(RequestFor(*begun)).status())) begun.reset();
    const absl::StatusOr<v1::Image> newest = source.Newest(name);
    absl::Status status;
    if (newest.ok() && newest->digest() != copied) {
      const v1::Image image = begun.value_or(*newest);
      trace.Begins(image);
      target.Remember(trace.TakeLearned());
      status = target.Copy(image);
      begun.reset();
      // Removed meanwhile, as newer ones were taken: the next of these is what is to be copied.
      if (!status.ok() && gone != image.digest() &&
          absl::IsNotFound(source.Find(RequestFor(image)).status())) {
        gone = image.digest();
        absl::MutexLock lock(&mutex);
        if (interrupted) return;
        continue;
      }
      if (!status.ok() && target.LeftParts()) begun = image;
      if (status.ok()) {
        std::optional<std::vector<std::string>> there;
        const absl::StatusOr<v1::Image> newest_copied = NewestOfCopied(source, image, last);
        if (newest_copied.ok()) last = *newest_copied;
        status = newest_copied.ok() ? target.Prune(name, *last, &there) : newest_copied.status();
        trace.Copied(image, there);
        if (const std::string& other = target.OtherStart(); !other.empty()) {
          trace.Failed(absl::FailedPreconditionError(other));
          if (std::exchange(told, other) != other) output.Warning(other);
        }
      }
      if (status.ok()) copied = image.digest();
      // What was interrupted has not failed.
      if (!status.ok() && !absl::IsCancelled(status)) trace.Failed(status);
    }
    trace.Tell();
    absl::MutexLock lock(&mutex);
    if (interrupted) return;
    if (absl::IsNotFound(newest.status())) {
      // It may come yet; who has mistyped the name, or the store's, is to know.
      const std::string reason(newest.status().message());
      if (std::exchange(waiting_for, reason) != reason)
        output.Warning(absl::StrCat(reason, "; it is copied as soon as it is there"));
    } else {
      waiting_for.clear();
      status.Update(newest.status());
    }
    if (!status.ok()) {
      // What is wrong may pass: the next image is another chance, and the job must not be left without one.
      output.Warning(absl::StrCat(status.message(), "; trying again"));
      wait = std::exchange(try_again_after, std::min(2 * try_again_after, kTryAgainAtLeastEvery));
    } else {
      try_again_after = kTryAgainAfter;
    }
    if (AwaitUntil(mutex, absl::Condition(&interrupted), Deadline(wait))) return;
  }
}

int CopyTo(Client& client, CopyTarget& target, const Output& output, Interrupts& interrupts,
           const CopyImage& what) {
  absl::Mutex mutex;
  bool interrupted = false;
  interrupts.SetAction([&](int) {
    {
      absl::MutexLock lock(&mutex);
      interrupted = true;
    }
    client.Cancel();
    target.Cancel();
  });
  const CopySource source(client);
  int code = kDone;
  if (what.follow) {
    CopyTrace trace(client, what.image,
                    what.from.empty() ? ShownPlace(what.to) : absl::StrCat("node ", ThisHostName()), output);
    Follow(source, target, output, what.image, trace, mutex, interrupted);
    trace.End();
  } else if (what.check) {
    const absl::Status status = target.Check(NameOf(what.image));
    if (!status.ok()) {
      code = output.Fail(Annotate(status, absl::StrCat("copies can't be written to ", what.to)));
    } else {
      output.Json(v1::TransferResult());
      output.Text(absl::StrCat("copies can be written to ", what.to, "\n"));
    }
  } else {
    const absl::StatusOr<v1::Image> image = source.Find(what.image);
    const absl::Status status = image.ok() ? target.Copy(*image) : image.status();
    if (!status.ok()) code = output.Fail(status);
  }
  interrupts.SetAction(nullptr);
  return code;
}

int CopyFromBucket(Client& client, Bucket& bucket, const Output& output, Interrupts& interrupts,
                   const CopyImage& what, const CopyWords& words) {
  interrupts.SetAction([&](int) {
    client.Cancel();
    bucket.Cancel();
  });
  const absl::Status taken = TakeFromBucket(bucket, client, output, what.image, what.begin, what.from, words);
  interrupts.SetAction(nullptr);
  return taken.ok() ? kDone : output.Fail(taken);
}

}  // namespace

int CopyImages(Client& client, const GlobalOptions& globals, const Output& output, Interrupts& interrupts,
               const CopyImage& what) {
  CopyOptions options;
  options.whole = what.whole;
  options.quiet = what.follow;
  options.keep = what.keep;
  if (what.from.empty()) {
    options.words = {absl::StrCat("copied to ", what.to), absl::StrCat("is at ", what.to, " already")};
  } else {
    options.words = {absl::StrCat("copied from ", what.from), "is here already"};
  }
  if (!what.bucket.empty()) {
    Bucket bucket(what.bucket);
    if (!what.from.empty()) return CopyFromBucket(client, bucket, output, interrupts, what, options.words);
    BucketCopies copies(client, bucket, output, std::move(options));
    return CopyTo(client, copies, output, interrupts, what);
  }
  absl::StatusOr<std::unique_ptr<Client>> opened =
      Client::Open(OtherEndpoint(globals, what.from.empty() ? what.to : what.from));
  if (!opened.ok()) return output.Fail(opened.status());
  Client& from = what.from.empty() ? client : **opened;
  Client& to = what.from.empty() ? **opened : client;
  StoreCopies copies(from, to, output, what.begin, std::move(options));
  return CopyTo(from, copies, output, interrupts, what);
}

}  // namespace rekindle::cli
