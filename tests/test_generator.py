"""What a generator promises: limits, modes, an untouched model, drafts."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny, tiny_model, tiny_tokenizer

from gradrerank import Document, GradReranker
from gradrerank.errors import ContextOverflowError, InvalidArgumentError
from gradrerank.lm.generator import Generator
from gradrerank.lm.limits import check_memory, context_limit


def scores(reranker: GradReranker, **options: Any) -> list[float]:
    return [d.score for d in reranker.rerank(QUERY, {"a": DOCUMENTS}, **options)]


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny())


# -- C28, C19: whatever mode the caller's thread is in ------------------------------------------


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("scorer", ["gates", "mixture", "ablation"])
def test_C28_results_do_not_depend_on_the_callers_mode(mode: Any, scorer: str) -> None:
    expected = scores(GradReranker(tiny()), scorer=scorer)
    fresh = GradReranker(tiny())
    with mode():
        inside = scores(fresh, scorer=scorer)
    assert inside == expected
    assert scores(fresh, scorer=scorer) == expected, "caches made inside the mode serve outside of it"


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_C28_reranker_built_inside_a_mode_works_outside(mode: Any) -> None:
    model, tokenizer = tiny()
    with mode():
        built = GradReranker((model, tokenizer))
    assert scores(built) == scores(GradReranker(tiny()))


def test_C28_model_whose_weights_are_inference_tensors() -> None:
    with torch.inference_mode():
        model = tiny_model()
    assert all(p.is_inference() for p in model.parameters())
    assert scores(GradReranker((model, tiny_tokenizer()))) == scores(GradReranker(tiny()))


@pytest.mark.parametrize("raises", [False, True])
def test_C19_grad_mode_is_restored(reranker: GradReranker, raises: bool) -> None:
    class Failing:
        name = "failing"

        def score(self, job: Any) -> Any:
            raise KeyError("no")

    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            if raises:
                with pytest.raises(KeyError):
                    scores(reranker, scorer=Failing())
            else:
                scores(reranker)
            assert torch.is_grad_enabled() == enabled
            assert not torch.is_inference_mode_enabled()


def test_C19_grad_mode_of_worker_threads(reranker: GradReranker) -> None:
    import asyncio

    async def in_a_thread() -> list[float]:
        with torch.no_grad():
            return await asyncio.to_thread(scores, reranker)

    assert asyncio.run(in_a_thread()) == scores(reranker)


# -- C29: no mark is left on the user's model ------------------------------------------------------


def snapshot(model: Any) -> Any:
    modules = [(n, m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()]
    parameters = [(n, p.requires_grad, p.grad is None, p._version, id(p)) for n, p in model.named_parameters()]
    settings = (model.config._attn_implementation, model.config.use_cache, model.generation_config.to_dict())
    return modules, parameters, settings, torch.get_rng_state().tolist()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_C29_the_users_model_is_left_exactly_as_it_was(training: bool, raises: bool) -> None:
    model, tokenizer = tiny()
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    model.train(training)
    if training:
        model.gradient_checkpointing_enable()
    before, padding = snapshot(model), (tokenizer.padding_side, tokenizer.pad_token, tokenizer.chat_template)
    reranker = GradReranker((model, tokenizer))
    expected = scores(GradReranker(tiny()))
    for scorer in ("gates", "mixture", "ablation"):
        scores(reranker, scorer=scorer)
    scores(reranker, target="draft")
    if raises:
        with pytest.raises(RuntimeError):
            scores(reranker, scorer=RaisesInBackward())
    assert scores(reranker) == expected, "dropout is off while scoring"
    assert snapshot(model) == before
    assert (tokenizer.padding_side, tokenizer.pad_token, tokenizer.chat_template) == padding


class RaisesInBackward:
    """Runs a forward pass with gradients and dies in the backward pass."""

    name = "dying"

    def score(self, job: Any) -> Any:
        memory = job.generator.remember(job.documents)
        with job.generator.exact_mode(grad=True):
            gates = [torch.ones(1, 4, len(job.documents), requires_grad=True) for _ in range(3)]
            loss = job.generator.token_losses(memory, [job.continuation], gates).mean.sum()
            loss.register_hook(lambda grad: 1 / 0)
            try:
                torch.autograd.grad(loss, gates)
            except ZeroDivisionError as error:
                raise RuntimeError("backward failed") from error


def test_C29_weights_are_shared_not_copied() -> None:
    model, tokenizer = tiny()
    generator = Generator(model, tokenizer)
    theirs = {p.data_ptr() for p in model.parameters()}
    for view in (generator.plain, generator.engine._gated):
        assert {p.data_ptr() for p in view.parameters()} == theirs
        assert not any(p.requires_grad for p in view.parameters())


# -- C26, C27: what fits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "tokenizer", "user", "limit"),
    [(512, int(1e30), None, 512), (512, 128, None, 128), (512, int(1e30), 64, 64), (None, int(1e30), 64, 64)],
)
def test_C27_limit_is_the_smallest_that_is_set(own: int | None, tokenizer: int, user: int | None, limit: int) -> None:
    config = SimpleNamespace(max_position_embeddings=own)
    config.get_text_config = lambda: config
    assert context_limit(config, tokenizer, user) == limit


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_C27_a_document_over_the_context_is_an_error_that_names_it_before_the_model_is_called(family: str) -> None:
    reranker = GradReranker(tiny(family), max_context=120)
    with pytest.raises(ContextOverflowError, match=r"document 'long' is longer than the model's context: \d+ tokens"):
        reranker.rerank(QUERY, {"a": ["short", Document("the ferry leaves " * 100, id="long")]})
    assert len(reranker.generator.store) == 0, "nothing was read"


def test_C27_a_query_over_the_context_is_never_cut_silently() -> None:
    reranker = GradReranker(tiny(), max_context=100)
    with pytest.raises(ContextOverflowError, match="the query does not fit: template 24, question and target"):
        reranker.rerank("who " * 200, {"a": ["short"]})


def test_C27_four_hundred_small_documents_lie_side_by_side() -> None:
    reranker = GradReranker(tiny(), max_context=100)
    result = reranker.rerank("When?", {"a": [f"tram {i}" for i in range(400)]}, top_n=3)
    assert len(result) == 3
    assert len(result.dropped) == 397


@given(limit=st.integers(40, 300), sizes=st.lists(st.integers(1, 120), min_size=1, max_size=6))
def test_C27_a_draft_prompt_never_exceeds_its_limit(reranker: GradReranker, limit: int, sizes: list[int]) -> None:
    layout = reranker.generator.layout
    documents = layout.documents([(None, "tram " * size) for size in sizes])
    try:
        ids = layout.ordinary_prompt("When?", documents, limit=limit)
    except ContextOverflowError as error:
        assert str(limit) in str(error)
        assert len(layout.ordinary_prompt("When?", documents[:1], limit=9999)) > limit
    else:
        assert len(ids) <= limit


def test_C26_a_long_document_is_cut_with_one_warning_and_returned_whole() -> None:
    reranker = GradReranker(tiny(), max_document_tokens=40)
    long = "The tram runs. " * 300 + "The ferry leaves at nine."
    with pytest.warns(UserWarning, match=r"1 documents are longer than max_document_tokens=40 .*'n1'") as caught:
        result = reranker.rerank(QUERY, {"a": [Document(long, id="n1"), "short"]})
    assert len([w for w in caught if "longer than" in str(w.message)]) == 1
    cut = next(d for d in result if d.id == "n1")
    assert cut.text == long
    assert cut.truncated
    assert 0 < cut.kept[1] < 200
    assert long[: cut.kept[1]].startswith("The tram runs.")
    assert not next(d for d in result if d.id is None).truncated


def test_more_documents_than_fit_in_memory_is_an_error_before_the_first_is_read() -> None:
    with pytest.raises(ContextOverflowError, match=r"7 documents need .* GiB of key-value caches"):
        check_memory(10**12, 7, 1 << 20, torch.device("cpu"))


# -- drafts, copies -----------------------------------------------------------------------------------


def test_a_draft_is_greedy_and_repeatable(reranker: GradReranker) -> None:
    state = torch.get_rng_state()
    first = reranker.rerank(QUERY, {"a": DOCUMENTS}, target="draft")
    torch.manual_seed(123)
    second = reranker.rerank(QUERY, {"a": DOCUMENTS}, target="draft")
    assert first.target_text == second.target_text != ""
    assert first.tokens["draft"] > 0
    torch.set_rng_state(state)


def test_C20_generators_are_shared_by_copies_and_not_pickled(reranker: GradReranker) -> None:
    assert copy.deepcopy(reranker).generator is reranker.generator
    assert scores(copy.deepcopy(reranker)) == scores(reranker)
    with pytest.raises(TypeError, match="holds a ready model"):
        pickle.dumps(reranker)


def test_C20_a_reranker_made_from_a_folder_is_pickled_by_its_name(tmp_path: Any) -> None:
    model, tokenizer = tiny()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    original = GradReranker(str(tmp_path), top_n=3)
    data = pickle.dumps(original)
    assert len(data) < 5000, "no weights"
    assert scores(pickle.loads(data)) == scores(original)


def test_device_or_dtype_for_a_loaded_model_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="dtype='bfloat16' was given for a model that is loaded already"):
        GradReranker(tiny(), dtype="bfloat16")


@pytest.mark.parametrize("model", [3, ("only one",), tiny_model])
def test_a_model_of_another_kind_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="model must be None, a name, a"):
        GradReranker(model)


def test_a_name_that_is_no_model_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match=r"model '/no/such/folder' could not be loaded"):
        GradReranker("/no/such/folder")


@pytest.mark.parametrize("device", ["toaster", "cuda:97"])
def test_a_device_that_cannot_be_used_is_named(device: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"device '{device}' cannot be used"):
        GradReranker(device=device)


def test_C29_the_users_hooks_do_not_see_our_passes() -> None:
    model, tokenizer = tiny()
    seen: list[str] = []
    for module in (model, model.model.layers[0]):
        module.register_forward_hook(lambda *_: seen.append("after"))
        module.register_forward_pre_hook(lambda *_: seen.append("before"))
        module.register_forward_hook(lambda *_, **__: seen.append("after"), with_kwargs=True, always_call=True)
    scores(GradReranker((model, tokenizer)))
    assert seen == []
    model(torch.tensor([[5, 6]]))
    assert len(seen) == 6, "they still see the user's"


def test_settings_of_the_users_config_that_change_outputs_do_not_matter() -> None:
    model, tokenizer = tiny()
    model.config.return_dict, model.config.output_hidden_states = False, True
    assert scores(GradReranker((model, tokenizer))) == scores(GradReranker(tiny()))
    assert (model.config.return_dict, model.config.output_hidden_states) == (False, True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradReranker(tiny(), max_context=20), "max_context=20 leaves no room"),
        (lambda: GradReranker(tiny(), prompt="hi"), "prompt must be PromptTexts"),
        (lambda: GradReranker((None, tiny_tokenizer())), "its model is a NoneType"),
        (lambda: GradReranker((tiny_tokenizer(), tiny_model())), "its model is a TokenizersBackend|its model is a "),
        (lambda: GradReranker(tiny_model()), "a model comes together with its tokenizer"),
    ],
)
def test_what_cannot_be_a_model_is_named(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"attention_chunk_size": 100}, 100),
        ({"keep_window_size": 200}, 200),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 128}}, 128),
        ({"rope_scaling": {"type": "dynamic"}, "original_max_position_embeddings": 64}, 64),
        ({"rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 128}}, 512),
        ({"attn_temperature_tuning": True, "floor_scale": 99}, 99),
    ],
)
def test_C27_lengths_at_which_the_model_changes_its_ways_are_limits(settings: dict[str, Any], limit: int) -> None:
    config = SimpleNamespace(max_position_embeddings=512, **settings)
    config.get_text_config = lambda: config
    assert context_limit(config, int(1e30), None) == limit
