"""Real networks of transformers, tiny and with random weights; nothing is downloaded."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import segcal
from segcal.errors import InputError

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make setup-frameworks")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

from segcal.integrations.transformers import CalibratedProcessor, CalibratedSegmentation, mask_logits  # noqa: E402

CLASSES = 4
PIXELS = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
SIZES = [(70, 83), (70, 83)]


def segformer():
    return transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(
            num_labels=CLASSES, hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1] * 4,
            decoder_hidden_size=16,
        )
    )  # fmt: skip


def upernet():
    backbone = transformers.ConvNextConfig(
        hidden_sizes=[8] * 4, depths=[1] * 4, out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    return transformers.UperNetForSemanticSegmentation(
        transformers.UperNetConfig(
            backbone_config=backbone, num_labels=CLASSES, hidden_size=8, use_auxiliary_head=False, pool_scales=[1, 2]
        )
    )


def dpt():
    return transformers.DPTForSemanticSegmentation(
        transformers.DPTConfig(
            num_labels=CLASSES, hidden_size=8, num_hidden_layers=4, num_attention_heads=1, intermediate_size=8,
            image_size=64, neck_hidden_sizes=[8] * 4, fusion_hidden_size=8, backbone_out_indices=[0, 1, 2, 3],
            use_auxiliary_head=False, readout_type="ignore",
        )
    )  # fmt: skip


def mask2former():
    backbone = transformers.SwinConfig(
        embed_dim=8, depths=[1] * 4, num_heads=[1] * 4, window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    return transformers.Mask2FormerForUniversalSegmentation(
        transformers.Mask2FormerConfig(
            backbone_config=backbone, num_labels=CLASSES, feature_size=32, mask_feature_size=32, hidden_dim=32,
            encoder_layers=1, decoder_layers=2, num_attention_heads=2, dim_feedforward=16, num_queries=7,
        )
    )  # fmt: skip


@pytest.fixture
def calibrator(randomise):
    return randomise(segcal.make_calibrator("cms_op", CLASSES))


def made(make):
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # a new network says the same everywhere
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


@pytest.mark.parametrize("make", [segformer, upernet, dpt], ids=lambda make: make.__name__)
def test_logits_are_enlarged_and_then_calibrated_and_the_map_stays(make, calibrator):
    model, processor = made(make), transformers.SegformerImageProcessorPil()
    pixels = PIXELS[..., :64] if make is dpt else PIXELS  # DPT takes squares alone
    with torch.no_grad():
        plain = model(pixels)
        calibrated = CalibratedSegmentation(model, calibrator)(pixels, target_size=SIZES[0])
        whole = CalibratedSegmentation(model, calibrator)(pixels).logits
    large = nn.functional.interpolate(plain.logits, size=SIZES[0], mode="bilinear", align_corners=False)
    torch.testing.assert_close(calibrated.logits, calibrator(large).detach())
    assert whole.shape == (2, CLASSES, *pixels.shape[2:])
    before = processor.post_process_semantic_segmentation(plain, SIZES)
    after = processor.post_process_semantic_segmentation(calibrated, SIZES)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert len(torch.cat([one.flatten() for one in before]).unique()) > 1  # there is something to change


def test_the_other_way_round_changes_labels(calibrator):
    with torch.no_grad():
        logits = made(segformer)(PIXELS).logits
        late = nn.functional.interpolate(calibrator(logits), size=SIZES[0], mode="bilinear", align_corners=False)
    large = nn.functional.interpolate(logits, size=SIZES[0], mode="bilinear", align_corners=False)
    assert (late.argmax(1) != large.argmax(1)).any()


@pytest.mark.parametrize("make", [segformer, mask2former], ids=lambda make: make.__name__)
def test_the_processor_gives_the_map_as_ever_and_calibrated_probabilities(make, calibrator):
    model = made(make)
    plain = (
        transformers.SegformerImageProcessorPil() if make is segformer else transformers.Mask2FormerImageProcessorPil()
    )
    with torch.no_grad():
        outputs = model(PIXELS)
    raw = plain.post_process_semantic_segmentation(outputs, SIZES, return_segmentation_scores=True)
    processor = CalibratedProcessor(plain, calibrator)
    found = processor.post_process_semantic_segmentation(outputs, SIZES, return_segmentation_scores=True)
    maps = processor.post_process_semantic_segmentation(outputs, SIZES)
    for one, before, alone in zip(found, raw, maps, strict=True):
        assert torch.equal(one["segmentation"], before["segmentation"])
        assert torch.equal(alone, before["segmentation"])
        scores = before["segmentation_scores"]
        if make is mask2former:
            scores = (scores / scores.sum(0)).log()
        expected = calibrator(scores[None])[0].exp().detach()
        torch.testing.assert_close(one["segmentation_scores"], expected, rtol=1e-4, atol=1e-5)
    picture = Image.fromarray(np.zeros((20, 30, 3), np.uint8))
    assert processor(picture, return_tensors="pt")["pixel_values"].ndim == 4
    assert processor.do_rescale is plain.do_rescale


def test_scores_of_masks_keep_their_winner():
    scores = torch.rand(5, 400, generator=torch.Generator().manual_seed(0))
    scores[2, :200] = torch.nextafter(scores[1, :200], torch.tensor(2.0))
    scores[:, 0] = 0
    assert torch.equal(mask_logits(scores).argmax(0), scores.argmax(0))


def test_saved_and_loaded_it_says_the_same(tmp_path):
    labels = torch.randint(0, CLASSES, (3, 8, 9), generator=torch.Generator().manual_seed(0))
    fitted = segcal.fit(
        "ts", 9 * torch.nn.functional.one_hot(labels.roll(1, 0), CLASSES).movedim(-1, 1).float(), labels
    )
    whole = CalibratedSegmentation(made(segformer), fitted)
    whole.save_pretrained(tmp_path / "published")
    again = CalibratedSegmentation.from_pretrained(tmp_path / "published")
    assert type(again.model) is transformers.SegformerForSemanticSegmentation
    with torch.no_grad():
        assert torch.equal(again(PIXELS).logits, whole(PIXELS).logits)
    assert again.config.num_labels == CLASSES
    assert transformers.SegformerForSemanticSegmentation.from_pretrained(tmp_path / "published") is not None


def test_what_does_not_fit_is_one_sentence(calibrator, tmp_path):
    other = segcal.make_calibrator("ts", CLASSES + 1)
    with pytest.raises(InputError, match=r"SegformerForSemanticSegmentation has 4 classes, but .* was fitted for 5"):
        CalibratedSegmentation(made(segformer), other)
    with pytest.raises(
        InputError, match=r"model is Conv2d, but a network of transformers is needed. Use segcal.attach"
    ):
        CalibratedSegmentation(nn.Conv2d(3, CLASSES, 1), calibrator)
    with pytest.raises(
        InputError, match=r"returns class_queries_logits.*Use segcal.*CalibratedProcessor for mask class"
    ):
        CalibratedSegmentation(made(mask2former), calibrator)(PIXELS)
    with pytest.raises(InputError, match="calibrator is a bare cms_op, but what is saved says where it came from"):
        CalibratedSegmentation(made(segformer), calibrator).save_pretrained(tmp_path / "published")
    processor = CalibratedProcessor(transformers.SegformerImageProcessorPil(), other)
    with pytest.raises(InputError, match="the network has 4 classes, but the calibrator was fitted for 5"):
        processor.post_process_semantic_segmentation(made(segformer)(PIXELS), SIZES)
