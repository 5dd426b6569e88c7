// Labels of the store's catalog that images of supervised jobs have, beside those of image_layout.h.
#pragma once

#include <cstdint>

namespace rekindle::v1 {

// The name of the machine whose supervisor took it, for people.
inline constexpr char kSupervisedHostLabel[] = "rekindle.supervised-host";

// The numbers of a job's images (kSupervisedNumberLabel) grow from start to start, each of which goes on from
// an image of one before: above these bits is how many starts there were. Those of older versions have
// nothing there.
inline constexpr int kBitsOfNumberInStart = 32;

// From which images of earlier starts its own one has come, from one to the other (base/job_descent.h).
inline constexpr char kSupervisedAncestorsLabel[] = "rekindle.supervised-ancestors";

// Which images in its past hold no death that comes at once (base/job_descent.h, SoundStretch), as far as
// that was known when it was taken. Whoever removes such images, wherever they are, leaves the newest of
// these.
inline constexpr char kSupervisedSoundLabel[] = "rekindle.supervised-sound";

// Which images of other ways were known to whoever had its start, or one that this has come from, go on from
// an image: in form as the ancestors. They have been decided against, up to these.
inline constexpr char kSupervisedSeenLabel[] = "rekindle.supervised-seen";

}  // namespace rekindle::v1
